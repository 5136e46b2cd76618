"""The handlers of `leasehold demo`, imported by its zygote. Must not import redis or rich: no child may carry them."""
