"""The app in a browser: textual-serve on the loopback address, behind a guard of our own."""
