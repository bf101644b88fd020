"""What needs Amazon's libraries; nothing else imports them."""
