"""The acts of visitors, one module for each kind of thing. Runs in the web server's process."""
