"""The app in a browser: textual-serve on the loopback address, behind our own guard."""
