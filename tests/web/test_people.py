"""People at the page: two at one job, one with a keyboard alone, one in the dark, one on a phone."""

from urllib.parse import urlsplit

from tests.web.browser import MARKS, browsing
from tests.web.conftest import SECOND_OPERATOR

pytestmark = MARKS


def test_two_people_at_one_job_do_not_overwrite_each_other(filled, address, browser):
    with browsing() as other:
        other.log_in(address, SECOND_OPERATOR)
        for each in (browser, other):
            each.open(f"{address}/job?jid=broken")
        browser.fill("form:has(textarea) textarea", '{"by": "the first"}')
        browser.submit("form:has(textarea)")
        assert (filled.job("broken").state, filled.job("broken").data) == ("waiting", {"by": "the first"})

        other.fill("form:has(textarea) textarea", '{"by": "the second"}')
        other.submit("form:has(textarea)")
        assert "job broken is waiting: only what has failed" in other.value("document.body.innerText")
        assert filled.job("broken").data == {"by": "the first"}
        other.open(f"{address}/job?jid=broken")
        other.submit("form[action$='/act/cancel']")
        browser.submit("form[action$='/act/priority']")
        assert "there is no job broken" in browser.value("document.body.innerText")
        assert [(act.act, act.actor) for act in filled.audit("broken")] == [
            ("cancel", "login:operator-2"),
            ("retry", "login:operator-1"),
        ]


def test_a_pause_is_seen_by_who_looks_at_the_queue(filled, address, browser):
    with browsing() as other:
        other.log_in(address, SECOND_OPERATOR)
        other.open(f"{address}/queue?queue=mail")
        browser.open(f"{address}/queue?queue=mail")
        browser.submit("form[action$='/act/pause_queue']")
        other.wait_for("Paused: login:operator-1")
        other.submit("form[action$='/act/unpause_queue']")
        browser.wait_until("!document.body.innerText.includes('Paused')")
    assert not filled.queue("mail").counts().paused


#: The element with the focus: what it is called, and whether a person sees that it has the focus.
FOCUS = """
(() => {
  const here = document.activeElement, style = getComputedStyle(here), box = here.getBoundingClientRect();
  return {
    words: here.ariaLabel || here.innerText.trim() || here.labels?.[0]?.innerText.trim() || here.name || here.tagName,
    isSeen: style.outlineStyle !== 'none' && box.width > 1 && box.bottom > 0 && box.top < innerHeight,
    isBody: here === document.body,
  };
})()
"""


def walk(browser):
    """Press Tab until the focus has been on everything, and return the words of all stops."""
    stops = []
    while True:
        browser.press("Tab")
        here = browser.value(FOCUS)
        if here["isBody"] or len(stops) > 200:
            return stops
        assert here["isSeen"], here
        stops.append(here["words"])


def test_a_keyboard_reaches_everything_and_shows_where_it_is(filled, address, browser):
    reachable = "[...document.querySelectorAll('a[href], button:enabled, input:not([type=hidden]), select, textarea,"
    reachable += " summary, pre[tabindex]')].filter(each => each.checkVisibility()).length"
    for path in ("/overview", "/queue?queue=mail", "/jobs?queue=mail", "/job?jid=broken", "/job?jid=child", "/config"):
        browser.open(address + path)
        stops = walk(browser)
        assert stops[0] == "Skip to the content"
        assert len(stops) >= browser.value(reachable), (path, stops)


def test_a_keyboard_alone_logs_in_finds_a_job_and_cancels_it(filled, address):
    with browsing() as browser:
        browser.open(address)
        while browser.value("document.activeElement.id") != "token":
            browser.press("Tab")
        browser.type("o" * 20)
        browser.press("Enter", loads=True)
        browser.press("/")
        browser.type("second")
        browser.press("Enter", loads=True)
        assert urlsplit(browser.value("location.href")).path == "/job"
        browser.press("Tab")
        browser.press("Enter")
        assert browser.value("location.hash") == "#main", "the first link skips the bar"
        while browser.value("document.activeElement.innerText") != "Cancel":
            browser.press("Tab")
        browser.press("Enter", loads=True)
        assert "second was cancelled by login:operator-1" in browser.value("document.body.innerText")
    assert filled.job("second") is None


def test_enter_in_a_field_of_the_marked_does_nothing(filled, address, browser):
    browser.open(f"{address}/jobs?queue=mail")
    browser.value("document.querySelector('[name=jids]').checked = true")
    browser.value("document.querySelector('.marked [name=into]').focus()")
    browser.type("slow")
    browser.press("Enter")
    assert browser.value("document.querySelector('.marked [name=into]').value") == "slow"
    browser.submit(".marked", "document.querySelector('.marked [value=move]')")
    browser.wait_for("moved 1 job into queue slow")
    assert filled.queue("slow").counts().waiting == 1


def test_the_switch_beats_the_system_and_is_kept(filled, address, browser):
    ground = "getComputedStyle(document.body).backgroundColor"
    grounds = {}
    for system in ("light", "dark"):
        browser.prefer(system)
        browser.open(f"{address}/overview")
        grounds[system] = browser.value(ground)
    assert grounds["light"] != grounds["dark"]

    for system, chosen in (("light", "dark"), ("dark", "light")):
        browser.prefer(system)
        browser.value("localStorage.clear()")
        browser.open(f"{address}/overview")
        browser.value("document.querySelector('[data-theme-switch]').focus()")
        browser.press(" ")
        assert browser.value(ground) == grounds[chosen]
        browser.open(f"{address}/queue?queue=mail")
        assert browser.value(ground) == grounds[chosen], "the next page is as it was chosen"
        browser.prefer(chosen)
        assert browser.value(ground) == grounds[chosen]
        browser.value("document.querySelector('[data-theme-switch]').click()")
        assert browser.value(ground) == grounds[system]


def test_a_phone_shows_every_field_and_button_of_a_form(filled, address, browser):
    browser.resize(390)
    outside = "[...document.querySelectorAll('section.acts :is(input, select, textarea, button, summary)')]"
    outside += ".filter(each => each.checkVisibility() && each.type !== 'hidden')"
    outside += ".map(each => each.getBoundingClientRect()).filter(box => box.left < 0 || box.right > 390).length"
    for path in ("/queues", "/queue?queue=mail", "/jobs?queue=mail", "/job?jid=broken", "/job?jid=daily", "/limits",
                 "/recurrences", "/doors", "/config"):  # fmt: skip
        browser.open(address + path)
        browser.value("document.querySelectorAll('details').forEach(each => { each.open = true })")
        assert browser.value(outside) == 0, path
        assert browser.value("document.documentElement.scrollWidth") <= 390, path


def test_a_phone_shows_in_the_bar_where_one_is(filled, address, browser):
    browser.resize(390)
    for path in ("/overview", "/config", "/events"):
        browser.open(address + path)
        here = "document.querySelector('nav [aria-current]').getBoundingClientRect()"
        assert browser.value(f"{here}.left >= 0 && {here}.right <= 390"), path
