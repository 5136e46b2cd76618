"""Concludes from facts in Redis why a job or a queue stands where it does. Runs in applications and commands."""
