"""The applications of the page on frameworks. tests/contrib/django/ has those of Django."""

from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "supervisor/docs/frameworks.md"


def test_settings_for_django_name_what_there_is():
    [shown] = [block for block in blocks(PAGE, "python") if "TASKS" in block]
    settings = {}
    exec(shown, settings)
    assert "supervisor.contrib.django" in settings["INSTALLED_APPS"]
    [backend] = settings["TASKS"].values()
    assert backend["BACKEND"] == "supervisor.contrib.django.backend.LeaseholdBackend"
