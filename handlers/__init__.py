"""The application's handlers, imported by the zygote of `leasehold run`. Must not import redis or start a thread."""
