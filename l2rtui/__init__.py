"""l2rtui: reinforcement learning on shared GPU machines, from one terminal.

Contains only version and commit: importing any submodule runs this file.
"""

__version__ = "0.1.0"


def commit() -> str:
    """Return the commit that the program was built from, or that its source tree is at; empty if unknown."""
    from pathlib import Path

    package = Path(__file__).parent
    try:
        if (package / "COMMIT").exists():  # of a wheel, or of the one file
            return (package / "COMMIT").read_text("utf-8").strip()
        git = package.parent / ".git"
        if git.is_file():  # a worktree
            git = Path(git.read_text("utf-8").removeprefix("gitdir:").strip())
        head = (git / "HEAD").read_text("utf-8").strip()
        if not head.startswith("ref:"):
            return head
        branch, common = head.removeprefix("ref:").strip(), git
        if (git / "commondir").exists():
            common = git / (git / "commondir").read_text("utf-8").strip()
        if (common / branch).exists():
            return (common / branch).read_text("utf-8").strip()
        packed = (common / "packed-refs").read_text("utf-8").splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {branch}")), "")
    except (OSError, UnicodeDecodeError):
        return ""
