"""Keys of `leasehold top`, from a terminal's bytes to requests. No terminal is needed."""

import re

import pytest

pytest.importorskip("rich")

from supervisor.cli.top.controller import Action, TextPage
from supervisor.cli.top.keys import HELP, Keys
from supervisor.cli.top.model import Pane
from tests.cli.top.parts import NOW_AT, Shown, batch, busy_shop, child, counts, end, model_of, snapshot, status

# bytes


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        (b"q", ["q"]),
        (b"jk", ["j", "k"]),
        (b"\x1b[A\x1b[B\x1bOA\x1bOB", ["up", "down", "up", "down"]),
        (b"\t\x1b[Z", ["tab", "back-tab"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1b[F\x1b[1~\x1b[4~", ["page-up", "page-down", "home", "end", "home", "end"]),
        (b"\r\n \x7f\x08", ["enter", "enter", "space", "rubout", "rubout"]),
        ("é処".encode(), ["é", "処"]),
        (b"\x1b[15~\x1b[1;5Cq", ["q"]),
        (b"\x1bxq", ["q"]),
        (b"\x01\x00q", ["q"]),
    ],
)
def test_bytes_of_a_terminal_become_keys(sent, keys):
    assert Keys().feed(sent) == keys
    one_by_one = Keys()
    assert [key for number in sent for key in one_by_one.feed(bytes([number]))] == keys
    assert not one_by_one.waiting


def test_an_escape_is_a_key_if_nothing_follows():
    keys = Keys()
    assert keys.feed(b"\x1b") == [] and keys.waiting
    assert keys.flush() == ["escape"] and not keys.waiting
    assert keys.flush() == []
    assert keys.feed(b"\x1b\x1b") == ["escape"] and keys.flush() == ["escape"]


# what they mean


@pytest.fixture
def shown():
    return Shown(busy_shop())


def test_tab_goes_round_the_panes(shown):
    assert shown.controller.pane is Pane.SUPERVISORS
    seen = []
    for key in ("tab", "tab", "right", "tab", "back-tab", "left"):
        shown.press(key)
        seen.append(shown.controller.pane)
    assert seen == [Pane.CHILDREN, Pane.ENDS, Pane.QUEUES, Pane.SUPERVISORS, Pane.QUEUES, Pane.ENDS]


def test_a_row_stays_chosen_while_others_come_and_go(shown):
    shown.press("down")
    assert shown.controller.worker == "web-2-4712-9c01"
    model = model_of(snapshot(supervisors={"a-1": status(), "web-2-4712-9c01": status()}))
    shown.controller._model = model
    assert shown.controller.worker == "web-2-4712-9c01"
    shown.controller._model = model_of(snapshot(supervisors={"a-1": status()}))
    assert shown.controller.worker == "a-1"


def test_moving_ends_at_both_ends(shown):
    shown.press("up", "k")
    assert shown.controller.worker == "web-1-4711-3f2a"
    shown.press("j", "down", "page-down", "end")
    assert shown.controller.worker == "script-9-1-aaaa"
    shown.press("home")
    assert shown.controller.worker == "web-1-4711-3f2a"


def test_another_supervisor_has_other_children(shown):
    shown.press("tab", "down", "down", "back-tab", "down")
    assert [row.key for row in shown.controller.rows(Pane.CHILDREN)] == ["1", "2"]
    assert shown.controller.row(Pane.CHILDREN).key == "1"


def test_drain_asks_by_name_and_only_y_says_yes(shown):
    assert shown.press("d") == []
    assert shown.lines()[-1] == "Drain web-1-4711-3f2a, which runs 3? It ends, once its jobs have. y/n"
    assert shown.press("y") == [Action("drain", "web-1-4711-3f2a")]
    for key in ("n", "escape", "enter", "d", "q"):
        assert shown.press("d", key) == []
        assert shown.lines()[-1] == "nothing was done"
    assert not shown.controller.over


def test_a_confirmed_request_goes_to_the_named_supervisor(shown):
    shown.press("d")
    shown.controller._model = model_of(snapshot(supervisors={"a-1": status()}))
    assert shown.press("y") == [Action("drain", "web-1-4711-3f2a")]


def test_plus_and_minus_scale_by_one_and_add_up(shown):
    assert shown.press("+", "+", "-") == [
        Action("scale", "web-1-4711-3f2a", {"fewest": 5, "most": 5}),
        Action("scale", "web-1-4711-3f2a", {"fewest": 6, "most": 6}),
        Action("scale", "web-1-4711-3f2a", {"fewest": 5, "most": 5}),
    ]
    shown.controller.on_snapshot()  # which was made before it came about
    (request,) = shown.press("+")
    assert request.argument == {"fewest": 6, "most": 6}
    for _ in range(4):
        shown.controller.on_snapshot()  # it never has
    (request,) = shown.press("+")
    assert request.argument == {"fewest": 5, "most": 5}


def test_batches_are_a_pane_while_there_are_some():
    records = [batch("import-7", total=9, pending=9), batch("old", "complete")]
    shown = Shown(model_of(snapshot(batches=records)))
    shown.press("back-tab")
    assert shown.controller.pane is Pane.BATCHES
    assert [row.key for row in shown.controller.rows(Pane.BATCHES)] == ["import-7"]
    assert shown.press("p") == [Action("pause batch", "import-7")]
    shown.controller._model = model_of(snapshot(batches=[batch("import-7", paused_by="kim")]))
    assert shown.press("p") == [Action("resume batch", "import-7")]
    shown.controller._model = model_of(snapshot())
    assert shown.press("p") == []
    shown.press("tab", "back-tab")
    assert shown.controller.pane is Pane.QUEUES


def test_scaling_keeps_the_minimum_and_at_least_one_process():
    shown = Shown(model_of(snapshot(supervisors={"w-1": status(processes=(2, 2, 3))})))
    assert [request.argument for request in shown.press(*"+---")] == [
        {"fewest": 2, "most": 4}, {"fewest": 2, "most": 3}, {"fewest": 2, "most": 2}, {"fewest": 1, "most": 1},
    ]  # fmt: skip
    shown.press("-")
    assert [request.argument for request in shown.press("-")] == [{"fewest": 1, "most": 1}]


def test_p_pauses_and_resumes_the_chosen_row(shown):
    assert shown.press("p") == [Action("pause", "web-1-4711-3f2a")]
    shown.press("back-tab")
    assert shown.press("p") == [Action("pause queue", "emails")]
    shown.press("down", "down")
    assert shown.press("p") == [Action("unpause queue", "reports")]
    paused = Shown(model_of(snapshot(supervisors={"w-1": status("paused", paused=True)})))
    assert paused.press("p") == [Action("resume", "w-1")]


def test_a_gone_row_needs_the_key_again():
    shown = Shown(
        model_of(snapshot(supervisors={"a-1": status(), "b-1": status()}, queues={"q": counts(1), "r": counts(1)}))
    )
    shown.press("down", "back-tab", "down")
    gone = snapshot(supervisors={"a-1": status()}, queues={"q": counts(1)})
    shown.controller._model.take(gone)
    assert shown.press("p") == []
    assert shown.lines()[-1] == "r is gone, and q is chosen now: nothing was done"
    assert shown.press("p") == [Action("pause queue", "q")]
    assert shown.press("-") == []
    assert shown.lines()[-1] == "b-1 is gone, and a-1 is chosen now: nothing was done"
    assert shown.press("-") == [Action("scale", "a-1", {"fewest": 3, "most": 3})]


def test_keys_act_on_filtered_rows():
    shown = Shown(model_of(snapshot(supervisors={"a-1": status(), "b-1": status()})))
    assert shown.press("r", "f", "b", "-", "enter", "r") == [Action("reload", "a-1"), Action("reload", "b-1")]


def test_r_reloads(shown):
    assert shown.press("r") == [Action("reload", "web-1-4711-3f2a")]


def test_c_asks_before_cancelling_a_childs_job(shown):
    shown.press("tab", "down")
    assert shown.press("c") == []
    assert shown.lines()[-1] == "Cancel yI9_p-tiSWux1uMM75jV2Q (image.resize)? It is gone then. y/n"
    assert shown.press("y") == [Action("cancel", "yI9_p-tiSWux1uMM75jV2Q")]
    assert shown.press("end", "c") == []
    assert "child 4 is idle" in shown.lines()[-1]


def test_s_asks_for_the_stack_of_the_chosen_child(shown):
    shown.press("tab", "down")
    assert shown.press("s") == [Action("stacks", "web-1-4711-3f2a", {"child": 2})]


def test_o_opens_the_job_of_the_chosen_child_or_end(shown):
    shown.press("tab", "down")
    assert shown.press("o") == [Action("open job", "yI9_p-tiSWux1uMM75jV2Q")]
    shown.press("end")
    assert shown.press("o") == [] and "choose a child that runs a job" in shown.lines()[-1]
    shown.press("tab")
    assert shown.press("o") == [Action("open job", "6JK2xghrRbuBbIain0NqbA")]


def test_g_opens_the_failed_groups(shown):
    assert shown.press("g") == [Action("open", "failed groups")]


def test_an_open_page_takes_the_keys(shown):
    shown.controller.page = TextPage("a stack", [f"line {number}" for number in range(100)])
    assert shown.press("down", "page-down", "d", "c", "+") == []
    lines = shown.lines(80, 24)
    assert lines[2].startswith("── a stack, lines 12 to 31 of 100 ──") and lines[3] == "  line 11"
    assert lines[-1] == "Escape or q goes back"
    for key in ("escape", "q"):
        shown.controller.page = TextPage("a stack", ["a line"])
        shown.press(key)
        assert shown.controller.page is None and not shown.controller.over
    (quits,) = (what for keys, what in HELP if keys.startswith("q"))
    assert "q goes back" in quits


def test_a_long_stack_line_is_wrapped(shown):
    shown.controller.page = TextPage("a stack", [f'  File "/{"app/" * 20}mail.py", line 7 in send'])
    below = shown.lines(80, 24)[4]
    assert below.startswith(" " * 8) and below.endswith('app/mail.py", line 7 in send')


def test_enter_shows_all_values_of_a_row(shown):
    shown.press("tab", "tab", "enter")
    lines = shown.lines(60, 24)
    assert re.match(r"── ends: 6JK2xghrRbuBbIain0NqbA at \d\d:\d\d:\d\d ─", lines[2])
    assert lines[3].startswith("  at          ")
    assert lines[4:12] == [
        "  what        died", "  why         SIGSEGV", "  klass       image.resize",
        "  jid         6JK2xghrRbuBbIain0NqbA", "  queue       images",
        "  message     the child that ran it was ended by SIGSEGV", "  worker      web-1-4711-3f2a", "",
    ]  # fmt: skip
    assert "              SIGSEGV" in shown.lines(50, 24)
    shown.press("escape")
    assert shown.controller.page is None


def test_a_long_page_of_a_row_scrolls():
    ends = [end("failed", "my-own", "k", 1, " ".join(f"word-{n}" for n in range(200)))]
    shown = Shown(model_of(snapshot(supervisors={"w-1": status(ends=ends)})))
    shown.press("tab", "tab", "enter")
    assert "lines 1 to 20 of" in shown.lines(80, 24)[2] and "word-199" not in shown.text(80, 24)
    shown.press("page-down", "page-down")
    assert "word-199" in shown.text(80, 24)


def test_a_confirmation_fits_a_narrow_terminal(shown):
    shown.press("d")
    assert shown.lines(30, 24)[-1] == "Drain web-1-4711-3f2a, wh… y/n"


def test_the_page_of_the_keys_names_every_key(shown):
    named = " ".join(keys for keys, _ in HELP)
    assert all(
        key in named for key in ("d", "+", "-", "p", "r", "c", "s", "o", "g", "f", "space", "?", "q", "Tab", "Escape")
    )
    assert max(len(what) for _, what in HELP) + 20 <= 80


def test_a_filter_is_typed_and_holds_for_its_pane_alone(shown):
    shown.press("back-tab", "f", *"IMAX", "rubout", "enter")
    assert [row.key for row in shown.controller.rows(Pane.QUEUES)] == ["images"]
    assert len(shown.controller.rows(Pane.SUPERVISORS)) == 4
    assert "queues, only: IMA" in shown.text()
    assert shown.press("p") == [Action("pause queue", "images")]
    shown.press("escape")
    assert len(shown.controller.rows(Pane.QUEUES)) == 5
    shown.press("f", *"qdc", "space", "x")
    assert not shown.controller.over and "nothing contains that" in shown.text()
    shown.press("escape")
    assert len(shown.controller.rows(Pane.QUEUES)) == 5 and shown.controller.typing is None


@pytest.mark.parametrize("key", ["d", "+", "-", "p", "r", "c", "s"])
def test_keys_do_nothing_without_supervisors(key):
    shown = Shown(model_of(snapshot()))
    assert shown.press(key) == []
    assert shown.lines()[-1] in ("no supervisor is running here", "no child is chosen")
    shown.press("back-tab")
    assert shown.press("p") == [] and shown.lines()[-1] == "there is no queue to be paused"
    assert shown.press("o") == []


def test_a_program_that_leases_by_itself_cannot_be_steered(shown):
    shown.press("end")
    for key in ("d", "+", "p", "r"):
        assert shown.press(key) == []
        assert shown.lines()[-1].startswith("script-9-1-aaaa has never said how it is")


def test_a_key_that_means_nothing_says_so(shown):
    assert shown.press("z") == [] and "z means nothing here" in shown.lines()[-1]


def test_space_freezes_and_q_quits(shown):
    shown.press("space")
    assert shown.controller.frozen and "frozen" in shown.lines()[0]
    shown.press("space")
    assert not shown.controller.frozen
    shown.press("q")
    assert shown.controller.over


def test_the_answer_of_another_version_breaks_nothing():
    odd = status(children=[child(1)], reload="?", ends=[{"what": None}, 7], uptime_s=None, version=None)
    odd |= {"processes": {"now": "many"}, "counts": {"completed": "all"}, "busy": None, "redis": {}}
    shown = Shown(model_of(snapshot(queues={"q": counts(1)}, supervisors={"w-1": odd})))
    assert "w-1" in shown.text(200, 60)
    shown.press("+", "d", "y")


@pytest.mark.parametrize("value", [None, -1, 1e300, float("nan"), 10**30, "soon", [], {"a": 1}, True], ids=repr)
def test_values_that_are_no_numbers_break_nothing(value):
    odd = child(1, "k") | {"running_s": value, "memory_bytes": value, "attempt": value, "child": value}
    ends = [end("died", "SIGSEGV", "k", 0) | {"at_unix": value}]
    answer = status(children=[odd], processes=(value, value, value), completed=value, died=value, ends=ends)
    answer |= {"uptime_s": value, "left_s": value, "busy": value, "deaths": {"SIGSEGV": value}}
    shown = Shown(model_of(snapshot(supervisors={"w-1": answer}), snapshot(NOW_AT + 1, supervisors={"w-1": answer})))
    assert "w-1" in shown.text(200, 60)
    for keys in (["+"], ["d", "n"], ["tab", "s"], ["tab", "enter"]):
        shown.press(*keys)
        assert shown.lines(80, 24)
