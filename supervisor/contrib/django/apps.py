"""The application for INSTALLED_APPS. Used in applications, and runs in zygote and children."""

from django.apps import AppConfig


class LeaseholdApp(AppConfig):  # type: ignore[misc]  # Django ships no types
    """The application brings `manage.py leasehold`."""

    name = "supervisor.contrib.django"
    label = "leasehold"
    verbose_name = "Leasehold"
