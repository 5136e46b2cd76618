"""The manual's tables of what happens: each name in them exists, each warning has a row, and each row has its tests."""

import ast
import builtins
import inspect
import itertools
import re
import signal

import pytest

import supervisor
from supervisor.cli.lib import parser
from supervisor.config import SETTINGS
from supervisor.engine.model import outcomes
from supervisor.engine.model.options import OPTIONS
from supervisor.master.model import outcome_rules
from supervisor.master.model.counts import OUTCOMES
from supervisor.master.report.state import STATES
from supervisor.ops.events import EVENTS
from supervisor.ops.metrics import METRICS
from tests.docs.pages import INDEX, OPERATIONS, ROOT, section, tables

CHAPTER = "What happens when …"
ROWS = [row for part in tables(OPERATIONS, CHAPTER) for row in part]

#: Reasons of deaths beside signals and exit codes.
NAMED_REASONS = {"timeout", "memory", "disk", "oom", "lost", "boot"}
KNOWN = {
    *EVENTS, *itertools.chain(*(fields for _, fields in EVENTS.values())), *METRICS, *OUTCOMES, *STATES, *OPTIONS,
    *(setting.flag for setting in SETTINGS), *signal.Signals.__members__, *NAMED_REASONS, "exit-N",
    *outcome_rules.INTERRUPTIONS, *outcome_rules._LOSSES, *supervisor.__all__, *dir(builtins),
    *inspect.signature(supervisor.handler).parameters,
    *("broken", "completion-lost", "expired", "expires", "interrupted", "unknown-handler"),  # groups, and an option
    *("go-on", "stop"),  # values of on_cut_off
    *("/livez", "/readyz", "/metrics"),
    *("sys.exit", "os._exit", "put", "failed", "stalled", "READONLY", "died:…", "died:<reason>"),
}  # fmt: skip


def named(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def exists(word: str) -> bool:
    program, _, command = word.partition(" ")
    return word.removeprefix("--") in KNOWN or (program == "leasehold" and command in parser.COMMANDS)


def test_the_index_lists_each_page_by_its_title():
    contents = re.findall(r"^\| \[(.*?)\]\((docs/.*?)\)", INDEX.read_text(), re.MULTILINE)
    pages = (ROOT / "deploy/docs").glob("*.md")
    titles = {page.read_text().partition("\n")[0].removeprefix("# "): f"docs/{page.name}" for page in pages}
    assert dict(contents) == titles


def test_every_name_exists():
    assert {word for word in named(section(OPERATIONS, CHAPTER)) if not exists(word)} == set()


def test_each_warning_has_a_row():
    seen = set().union(*(named("".join(row[1:])) for row in ROWS))
    assert {name for name, (level, _) in EVENTS.items() if level in ("warning", "error")} - seen == set()


def test_each_reason_of_a_death_or_interruption_has_a_row():
    told = set().union(*(named("".join(row)) for row in ROWS))
    assert all(reason in outcomes._DEATH_REASON.pattern.split("|") for reason in NAMED_REASONS)
    assert len(outcomes._DEATH_REASON.pattern.split("|")) == len(NAMED_REASONS) + 2
    assert {*NAMED_REASONS, "exit-N", "SIGSEGV", "SIGKILL"} - told == set()
    assert {*outcome_rules.INTERRUPTIONS, *outcome_rules._LOSSES} - told == set()


#: The tests that show each row, by their modules below `tests/`. process/observe/test_what_is_counted.py compares the
#: counts of all rows with what happens.
SHOWN_BY = {
    "raises": {
        "process/observe/test_output.py": ["test_retries_fails_and_exceptions_end_as_documented"],
        "process/jobs/test_in_the_handler.py": ["test_list_of_backoffs_repeats_its_last_one"],
    },
    "exits (`sys.exit`, `os._exit`, exec), also with 0": {
        "process/crash/test_crash.py": ["test_every_death_in_a_job_has_its_reason"]
    },
    "crashes: `SIGSEGV`, `SIGABRT`, `SIGBUS` …": {
        "process/crash/test_every_end.py": ["test_every_end_is_explained_and_leaves_nothing"]
    },
    "is killed by another process": {
        "process/crash/test_crash.py": ["test_killed_child_reruns_its_job_first"],
        "chaos/test_kills.py": ["test_a_killed_childs_job_runs_again_at_once_beside_busy_processes"],
    },
    "takes more memory than its limit": {
        "process/limits/test_memory.py": [
            "test_job_beyond_its_memory_limit_is_stopped_alone",
            "test_memory_error_at_the_limit_is_a_death_by_memory",
            "test_fast_memory_growth_is_stopped_within_a_second",
        ]
    },
    "takes what all together may have": {
        "process/limits/test_memory.py": ["test_largest_job_beyond_the_budget_reruns_alone"]
    },
    "is taken by the kernel's OOM killer": {
        "process/limits/test_memory.py": ["test_kernel_oom_kill_is_recognised_and_the_master_lives"]
    },
    "hangs": {"process/limits/test_time_limits.py": ["test_uncaught_soft_timeout_fails_with_its_stack"]},
    "hangs, and does not hear of it": {
        "process/limits/test_time_limits.py": ["test_hard_timeout_kills_a_job_and_its_processes"]
    },
    "spins in C with Python's lock": {
        "process/limits/test_time_limits.py": ["test_job_that_holds_the_gil_outlives_its_lease_and_runs_once"]
    },
    "writes more than it may": {
        "process/crash/test_attacks.py": ["test_attack_is_refused_from_its_level_on"],
        "process/sandbox/test_strict.py": ["test_file_and_follower_size_are_limited"],
    },
    "prints without end": {
        "process/observe/test_output.py": ["test_a_flood_of_output_fills_no_disk_and_delays_no_job"]
    },
    "leaves processes behind, daemons too": {
        "process/crash/test_trees.py": ["test_nothing_is_left_when_a_jobs_end_is_reported"],
        "process/boot/test_pid1.py": ["test_double_forked_processes_of_a_job_are_killed_and_reaped"],
    },
    "speaks nonsense on its socket": {
        "process/crash/test_every_end.py": ["test_every_end_is_explained_and_leaves_nothing"]
    },
    "dies each time": {"process/crash/test_crash.py": ["test_third_death_fails_the_job_with_its_last_output"]},
    "ends a child that runs other jobs beside it (`concurrency`)": {
        "process/beside/test_ends.py": [
            "test_culprit_is_found_in_halves_and_no_other_job_counts_anything",
            "test_deaf_job_dies_of_its_limit_and_the_others_run_again_uncounted",
            "test_at_most_once_jobs_beside_a_culprit_are_not_started_again",
        ]
    },
    "must not run twice (at most once), and does not end": {
        "process/crash/test_at_most_once.py": [
            "test_job_of_a_dead_child_fails",
            "test_drained_job_fails_as_interrupted",
            "test_job_never_starts_twice_under_random_kills",
        ]
    },
    "is cancelled, moved, released or put anew while it runs": {
        "process/crash/test_taken_away.py": [
            "test_cancelled_job_is_stopped_at_once_and_gone",
            "test_running_job_put_again_restarts_with_new_data",
            "test_moved_job_stops_here_and_runs_at_the_peer",
        ],
        "process/operate/test_cancel.py": ["test_a_deaf_handler_is_killed_with_its_processes"],
    },
    "is not started in time (`expires`)": {"engine/lua/test_expires.py": ["test_expired_job_is_never_leased"]},
    "has a klass without a handler": {
        "process/boot/test_bad_input.py": [
            "test_an_unknown_klass_comes_back_later_and_is_never_lost",
            "test_an_unknown_klass_ends_in_its_group_after_unknown_for",
        ]
    },
    "has data that is no JSON": {
        "process/boot/test_bad_input.py": ["test_invalid_json_fails_as_broken_and_keeps_its_bytes"]
    },
    "has too much data, or too large a result": {
        "engine/client/test_bad_input.py": ["test_a_bad_value_is_refused_by_its_name_and_nothing_changes"],
        "process/boot/test_bad_input.py": ["test_unstorable_result_still_completes_the_job"],
    },
    "its zygote dies, or hangs for 10 s": {
        "process/crash/test_crash.py": ["test_killed_zygote_costs_one_interruption"],
        "process/crash/test_stopped.py": ["test_hung_zygote_is_replaced_and_its_children_finish"],
    },
    "one job ends zygote after zygote": {
        "process/crash/test_crash.py": ["test_job_alone_at_three_zygote_losses_fails_for_good"]
    },
    "its children do not get ready": {
        "process/boot/test_boot.py": [
            "test_always_raising_after_fork_hook_makes_status_71",
            "test_hanging_after_fork_hook_is_killed_and_its_zygote_stays",
        ]
    },
    "it is drained: TERM, `leasehold drain`": {
        "process/drain/test_drain.py": [
            "test_drain_lets_running_jobs_finish_and_leaves_the_rest_in_order",
            "test_jobs_interrupted_by_a_drain_run_at_a_peer_at_once",
        ]
    },
    "it is drained in a hurry: QUIT, TERM again": {
        "process/drain/test_drain.py": [
            "test_quit_hands_all_jobs_back_at_once",
            "test_second_term_interrupts_at_once",
        ]
    },
    "it is to have fewer processes": {
        "process/operate/test_scale.py": ["test_surplus_jobs_are_interrupted_youngest_first_and_rerun"]
    },
    "it is killed (KILL)": {"process/crash/test_crash.py": ["test_peer_finishes_every_job_of_a_dead_master_once"]},
    "its container is killed, and starts again": {
        "process/boot/test_identity.py": ["test_restarted_container_is_a_new_worker_and_reruns_lost_jobs"]
    },
    "its host is lost": {"process/crash/test_stopped.py": ["test_stopped_master_settles_nothing_after_a_take_over"]},
    "it stands still (SIGSTOP, a frozen VM), for less than its leases last": {
        "process/crash/test_stopped.py": ["test_short_stop_costs_nothing"]
    },
    "it stands still for longer": {
        "process/crash/test_stopped.py": [
            "test_stopped_master_settles_nothing_after_a_take_over",
            "test_child_stops_when_its_lease_is_known_lost",
        ]
    },
    "its loop stands still": {"process/observe/test_probes.py": ["test_livez_tells_a_standing_loop_from_a_busy_one"]},
    "it has a bug of ours": {"process/boot/test_exit_codes.py": ["test_exit_code_says_why_the_supervisor_ended"]},
    "the kernel refuses processes or descriptors": {
        "process/boot/test_boot.py": ["test_refused_forks_are_retried_for_ever"],
        "process/crash/test_hostile.py": ["test_out_of_descriptors_fewer_children_run_and_no_job_is_interrupted"],
        "master/jobs/test_dispatcher.py": ["test_job_whose_large_completion_is_lost_is_tried_again_after_a_back_off"],
    },
    "its clock is wrong, or jumps": {
        "process/outage/test_wrong_clock.py": ["test_clock_wrong_by_an_hour_changes_nothing"]
    },
    "other code is loaded": {
        "process/reload/test_reload.py": [
            "test_running_jobs_finish_on_the_old_code",
            "test_jobs_past_the_reload_timeout_rerun_on_the_new_code",
        ]
    },
    "it does not boot at the start": {
        "process/boot/test_exit_codes.py": ["test_exit_code_says_why_the_supervisor_ended"],
        "process/observe/test_probes.py": ["test_broken_handlers_show_booting_until_the_end"],
    },
    "it does not boot at a reload": {
        "process/reload/test_reload.py": ["test_broken_code_changes_nothing_and_is_logged"]
    },
    "only the first child of the new code gets ready": {
        "process/reload/test_reload.py": ["test_new_code_with_one_ready_child_is_rolled_back"]
    },
    "it is broken on disk, and the zygote dies": {
        "process/boot/test_boot.py": ["test_failed_later_zygote_is_retried_and_the_supervisor_stays"]
    },
    "cannot be reached at the start, or the namespace has [another layout](upgrading.md)": {
        "process/boot/test_bad_input.py": ["test_an_unreachable_redis_is_69_without_the_password"],
        "process/outage/test_other_layout.py": ["test_start_in_another_layout_ends_and_says_what_to_do"],
    },
    "gets [another layout](upgrading.md) under a supervisor": {
        "process/outage/test_other_layout.py": ["test_layout_that_changes_meanwhile_is_an_outage"]
    },
    "restarts, or is cut off for seconds": {
        "process/crash/test_stopped.py": ["test_short_outage_costs_nothing"],
        "process/observe/test_probes.py": ["test_livez_always_succeeds_and_readyz_while_leasing"],
    },
    "is cut off for longer than the leases last": {
        "process/crash/test_stopped.py": ["test_long_job_outlives_an_outage_longer_than_its_lease"]
    },
    "is away for one supervisor only, for longer than that": {
        "process/outage/test_redis_loses.py": ["test_supervisor_cut_off_alone_loses_its_jobs_to_a_peer"]
    },
    "the same, for a persistent job or one with `on_cut_off` `stop`": {
        "process/outage/test_cut_off.py": [
            "test_persistent_job_never_has_two_holders",
            "test_job_that_a_peer_has_stops_or_goes_on",
            "test_stopped_job_that_is_still_ours_was_interrupted",
        ]
    },
    "is away in a drain": {
        "process/crash/test_stopped.py": [
            "test_drain_without_redis_exits_75_and_loses_nothing",
            "test_idle_drain_without_redis_exits_75_at_once",
        ]
    },
    "is away with some [shards](shards.md) of a namespace": {
        "process/shards/test_servers.py": [
            "test_stopped_node_holds_up_no_shard_of_others",
            "test_killed_node_comes_back_empty",
        ]
    },
    "has the jobs of a namespace moved to several shards": {
        "process/shards/test_shards.py": ["test_running_supervisor_follows_the_move_to_several_shards"]
    },
    "lacks replicas that `--acknowledge` asks for": {
        "process/outage/test_acknowledge.py": [
            "test_end_of_a_job_counts_once_a_replica_has_the_outcome",
            "test_job_that_must_not_start_twice_waits_for_the_replica",
        ],
        "engine/client/test_durable.py": ["test_put_without_its_replica_is_unknown_and_stands"],
    },
    "has its memory full": {
        "process/outage/test_redis_loses.py": [
            "test_full_redis_refuses_puts_and_runs_stored_jobs",
            "test_completion_with_puts_waits_for_memory",
            "test_drain_ends_completions_that_wait_for_memory",
        ]
    },
    "refuses something (a disk that is full, an account)": {
        "process/outage/test_redis_loses.py": ["test_refused_calls_are_repeated_until_accepted"]
    },
    "has failed over": {"process/outage/test_redis_loses.py": ["test_unpromoted_replica_stops_no_running_job"]},
    "has lost its last second": {
        "process/outage/test_redis_loses.py": ["test_lost_writes_undo_recent_puts_and_completions"]
    },
    "has lost everything": {
        "process/outage/test_redis_loses.py": ["test_emptied_redis_stops_jobs_and_renames_the_worker"]
    },
    "has a clock that jumps ahead, beyond TTL + grace": {
        "engine/lua/test_under_a_jumping_clock.py": ["test_due_jobs_keep_their_order_after_a_jump_of_years"]
    },
    "has a clock that jumps back": {
        "engine/lua/test_under_a_jumping_clock.py": [
            "test_lease_is_longer_when_the_clock_goes_back_until_renewed",
            "test_clock_going_back_delays_only_what_has_not_come",
        ]
    },
    "the log is not read": {
        "process/jobs/test_load.py": ["test_unread_log_costs_the_master_only_its_buffer"],
        "ops/test_events.py": ["test_a_stuck_reader_never_blocks_and_learns_what_was_dropped"],
    },
    "the port of `--http` is taken": {"process/observe/test_probes.py": ["test_a_taken_port_is_78_and_starts_nothing"]},
    "prometheus-client is not there": {
        "process/observe/test_probes.py": ["test_without_the_extra_metrics_name_the_package"]
    },
    "a collector of traces does not answer": {
        "process/observe/test_otel.py": ["test_a_silent_collector_delays_no_job"]
    },
}


def test_each_row_has_its_tests():
    rows = [row[0] for row in ROWS]
    assert len(set(rows)) == len(rows)
    assert list(SHOWN_BY) == rows
    assert all(SHOWN_BY.values())


@pytest.mark.parametrize("row", SHOWN_BY)
def test_each_test_of_a_row_exists(row):
    for path, names in SHOWN_BY[row].items():
        body = ast.parse((ROOT / "tests" / path).read_text()).body
        assert set(names) <= {node.name for node in body if isinstance(node, ast.FunctionDef)}, path
