"""The points of the attack on the first version, each with the test that holds it and the line that the test needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One point of the attack.

    Attributes:
        point: Its number in `POINTS`, with a letter where it has parts.
        test: What must fail without the line, as pytest names it.
        file: Where the line stands.
        line: Text that is there once.
        instead: What takes its place: the check is gone.
    """

    point: str
    test: str
    file: str
    line: str
    instead: str


_IO, _AGENT, _ACCESS = "tests/unit/scheduler_io", "tests/unit/agent", "tests/unit/access"
_ADMISSION = "scheduler_service/grpc_api/agents/agent_admission.py"

POINTS: Mapping[str, str] = {
    "1A": "a restored backup gave ids, fences and checkpoints again",
    "1B": "the kept end of an old job finished a new one",
    "1C": "a scheduler on an empty folder ended every job",
    "1D": "a missing database started as an empty cluster",
    "2": "a wiped node's jobs were lost at once, and ran twice",
    "3": "two agents of one name evicted each other for ever",
    "4": "any node ended any job",
    "5": "escaped children ran twice",
    "6": "a renamed node or a moved card was locked out for ever",
    "7": "certificates had no roles",
    "8": "the loopback port was root",
    "9": "jobs forged ends and leases; tenants shared a user",
    "10": "explaining stopped the event loop",
    "11": "cancels cost the queue's square; watchers overflowed in silence",
    "12": "damage was told as permissions, alterations and lost tails not at all",
    "13": "databases and backups were readable by everyone",
    "14": "metrics went to the network in plain text",
    "15": "a launcher's child got no SIGTERM",
    "16": "times stayed ahead after a clock jump",
    "17": "the file never shrank",
    "18": "plug-in paths, malformed messages, no bound of processes",
}
"""What happened, by the number of the point."""

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        point="1A",
        test=f"{_AGENT}/test_cluster_membership.py::"
        "test_the_checkpoint_of_another_clusters_job_of_the_same_name_is_not_resumed",
        file="cotenant_agent/cluster_membership.py",
        line="            if one.incarnation_id in self.lineage:\n",
        instead="            if True:\n",
    ),
    Mutant(
        point="1A",
        test=f"{_IO}/test_cluster_identity.py::test_ids_and_fences_jump_once_per_restore_and_no_two_restores_give_the_same",
        file="scheduler_service/adapters/storage/stored_identity.py",
        line="jumped = next_fence + FENCES_JUMPED + secrets.randbelow(_FENCES_JUMPED_AT_RANDOM)",
        instead="jumped = next_fence",
    ),
    Mutant(
        point="1B",
        test=f"{_IO}/test_foreign_clusters.py::"
        "test_the_kept_end_of_another_incarnations_job_ends_no_job_of_the_same_name",
        file=_ADMISSION,
        line="        if not self._identity.owns(key):\n",
        instead="        if False:\n",
    ),
    Mutant(
        point="1C",
        test=f"{_IO}/test_foreign_clusters.py::"
        "test_a_node_of_another_cluster_is_refused_with_the_remedy_and_nothing_of_it_is_ended",
        file=_ADMISSION,
        line="        if is_own:\n            return\n",
        instead="        return\n",
    ),
    Mutant(
        point="1C",
        test=f"{_AGENT}/test_cluster_membership.py::test_a_strangers_orders_are_not_carried_out",
        file="cotenant_agent/cluster_membership.py",
        line='        if mine not in ("", position.incarnation_id, *ancestors) and not is_free:\n',
        instead="        if False:\n",
    ),
    Mutant(
        point="1D",
        test=f"{_IO}/test_state_marker.py::test_a_marker_without_its_database_is_refused_with_the_remedy",
        file="scheduler_service/adapters/storage/sqlite_event_log.py",
        line="    if is_marked or (write_ahead.exists()",
        instead="    if False or (write_ahead.exists()",
    ),
    Mutant(
        point="2",
        test=f"{_IO}/test_node_instances.py::"
        "test_a_node_that_comes_back_without_its_running_job_waits_until_nothing_can_run_there",
        file=_ADMISSION,
        line="        if not missing or is_vouched or place is NodePlace.REBOOTED:\n            return\n",
        instead="        return\n",
    ),
    Mutant(
        point="3",
        test=f"{_IO}/test_node_instances.py::test_a_second_living_agent_of_a_node_is_refused_and_the_first_stays",
        file=_ADMISSION,
        line="        if silent_ms is not None and hello.instance_id:\n",
        instead="        if False:\n",
    ),
    Mutant(
        point="4",
        test=f"{_IO}/test_foreign_reports.py::"
        "test_a_node_says_of_another_nodes_job_what_it_likes_and_nothing_comes_of_it",
        file=_ADMISSION,
        line="    if job is not None and node_id in job.live_node_ids:\n",
        instead="    if job is not None:\n",
    ),
    Mutant(
        point="5",
        test=f"{_AGENT}/test_namespaces.py::test_nothing_of_a_job_outlives_its_killed_shim",
        file="cotenant_agent/keeper/namespaces.py",
        line="        control_process(_PR_SET_PDEATHSIG, signal.SIGKILL)\n",
        instead="",
    ),
    Mutant(
        point="5",
        test=f"{_AGENT}/test_attempt_table.py::test_what_outlived_its_shim_is_found_by_the_attempts_marker_and_ended",
        file="cotenant_agent/attempts/attempt_table.py",
        line="        job_processes.JobProcesses(_NO_KEEPER, (), attempt.environment, attempt.uid).kill_remains()\n",
        instead="",
    ),
    Mutant(
        point="6",
        test=f"{_IO}/test_returning_nodes.py::test_a_moved_card_is_taken_over_once_its_former_node_is_lost",
        file=_ADMISSION,
        line="            if is_heard or wait_ms or state.occupancy.jobs_on_node(owner):\n",
        instead="            if True:\n",
    ),
    Mutant(
        point="7",
        test=f"{_ACCESS}/test_role_table.py::test_what_a_role_must_not_do_stays_so",
        file="cotenant/access/roles.py",
        line='            "Connect": frozenset({Role.NODE}),\n',
        instead='            "Connect": _ALL,\n',
    ),
    Mutant(
        point="7",
        test="tests/contracts/test_fuzzed_roles.py::"
        "test_random_calls_of_a_role_reach_nothing_that_its_table_forbids[node-scheduler]",
        file="scheduler_service/grpc_api/access_interceptor.py",
        line="            check_permitted(method, caller)\n",
        instead="",
    ),
    Mutant(
        point="7",
        test=f"{_ACCESS}/test_predictor_roles.py::test_each_role_gets_through_where_the_table_lets_it",
        file="predictor_service/grpc_api/access_interceptor.py",
        line="            check_permitted(method, caller)\n",
        instead="",
    ),
    Mutant(
        point="8",
        test=f"{_ACCESS}/test_callers.py::test_who_shows_nothing_is_the_owner_on_the_socket_and_nobody_elsewhere",
        file="cotenant/access/callers.py",
        line='        if evidence.peer.startswith("unix:"):\n',
        instead="        if True:\n",
    ),
    Mutant(
        point="8",
        test=f"{_ACCESS}/test_local_access.py::"
        "test_a_server_listens_in_a_private_folder_only_and_takes_no_socket_from_a_living_one",
        file="cotenant/access/server_rules.py",
        line="    if folder.st_uid != os.geteuid() or stat.S_IMODE(folder.st_mode) & _PRIVATE:\n",
        instead="    if False:\n",
    ),
    Mutant(
        point="8",
        test="tests/unit/cli/test_up_says_who_may.py::test_it_states_who_gets_in_and_warns_as_root",
        file="cotenant/cli/up_command.py",
        line="    if user_id != 0:\n",
        instead="    if True:\n",
    ),
    Mutant(
        point="9",
        test=f"{_AGENT}/test_seals.py::test_a_forged_end_finishes_nothing_while_the_job_lives",
        file="cotenant_agent/attempts/attempt.py",
        line="        if record is None or self.seal is None or self.seal.is_on(path.name, record):\n",
        instead="        if True:\n",
    ),
    Mutant(
        point="9",
        test=f"{_AGENT}/test_seals.py::test_a_job_neither_prolongs_its_lease_nor_loses_it",
        file="cotenant_agent/keeper/shim_records.py",
        line="        if record is None or self._seal is None or self._seal.is_on(name, record) "
        "or not self._is_agent_alive():\n",
        instead="        if True:\n",
    ),
    Mutant(
        point="9",
        test=f"{_AGENT}/test_job_users.py::test_tenants_have_users_of_their_own_and_keep_them_after_a_restart",
        file="cotenant_agent/isolation/job_users.py",
        line="        number = read_integer(known, tenant) or self._draw(tenant, known)\n",
        instead="        number = self._numbers[0]\n",
    ),
    Mutant(
        point="10",
        test=f"{_IO}/test_heavy_reads.py::test_the_loop_goes_on_while_a_policy_explains",
        file="scheduler_service/grpc_api/jobs/explanations.py",
        line="self._thread.begin(lambda: _explained(found.find()))",
        instead="asyncio.ensure_future(asyncio.sleep(0, _explained(found.find())))",
    ),
    Mutant(
        point="11",
        test="tests/unit/core/test_cost_of_rounds.py::test_horus_looks_at_no_job_of_a_queue_before_a_full_cluster",
        file="scheduler_service/policies/placement/sharing_round.py",
        line="                closed = placement.closed()\n",
        instead="                closed = None\n",
    ),
    Mutant(
        point="11",
        test=f"{_IO}/test_job_watch.py::test_a_slow_watcher_learns_how_much_it_missed_and_how_things_stand",
        file="scheduler_service/grpc_api/jobs/job_watch.py",
        line="                yield scheduling_pb2.WatchJobsResponse(job=message, missed_changes=missed)\n",
        instead="                yield scheduling_pb2.WatchJobsResponse(job=message)\n",
    ),
    Mutant(
        point="12",
        test=f"{_IO}/test_damaged_state.py::test_an_unreadable_record_is_named_by_file_and_number_without_its_content",
        file="scheduler_service/adapters/storage/stored_records.py",
        line='        raise damaged(path, f"event {sequence} is unreadable") from None\n',
        instead="        raise\n",
    ),
    Mutant(
        point="12",
        test=f"{_IO}/test_log_chain.py::test_what_was_changed_is_named",
        file="scheduler_service/adapters/storage/stored_records.py",
        line="            chain.check(found, at_ms, body, link)\n",
        instead="",
    ),
    Mutant(
        point="12",
        test=f"{_IO}/test_log_chain.py::test_a_checkpointed_log_whose_write_ahead_log_was_removed_has_lost_its_tail",
        file="scheduler_service/adapters/storage/log_head.py",
        line="    if noted.sequence > sequence:\n",
        instead="    if False:\n",
    ),
    Mutant(
        point="13",
        test=f"{_IO}/test_private_state.py::test_a_state_in_an_open_folder_is_private_from_its_start",
        file="scheduler_service/adapters/storage/private_files.py",
        line="PRIVATE_MODE = 0o600\n",
        instead="PRIVATE_MODE = 0o644\n",
    ),
    Mutant(
        point="13",
        test=f"{_IO}/test_private_state.py::test_a_backup_into_an_open_folder_is_private",
        file="scheduler_service/adapters/storage/state_backup.py",
        line="    os.close(create_private(copy))\n",
        instead="",
    ),
    Mutant(
        point="14",
        test="tests/unit/predictor/test_metrics_page.py::"
        "test_a_foreign_address_of_metrics_needs_the_same_promise_as_the_scheduler_s",
        file="cotenant/tls_settings.py",
        line="    if not insecure and not is_loopback(address):\n",
        instead="    if False:\n",
    ),
    Mutant(
        point="15",
        test=f"{_AGENT}/test_shim_stops.py::test_a_child_of_a_launcher_checkpoints_before_it_is_killed",
        file="cotenant_agent/keeper/job_processes.py",
        line="        pids = named | _descendants(named | {self._supervisor_pid}, parents)\n",
        instead="        pids = {pid for pid, parent in parents.items() if parent == self._supervisor_pid}\n",
    ),
    Mutant(
        point="16",
        test=f"{_IO}/test_clock_jumps.py::test_times_after_a_forward_jump_come_back_and_keep_their_order_and_distances",
        file="scheduler_service/adapters/storage/clock_healing.py",
        line="    if lead_ms <= LEAD_MAX_MS or wall_ms < EARLIEST_WALL_MS:\n",
        instead="    if True:\n",
    ),
    Mutant(
        point="17",
        test=f"{_IO}/test_log_shrinks.py::test_the_file_shrinks_after_compaction",
        file="scheduler_service/adapters/storage/sqlite_event_log.py",
        line="        give_pages_back(self._connection, self._path, self._turn)\n",
        instead="",
    ),
    Mutant(
        point="18",
        test=f"{_AGENT}/test_allow_list.py::"
        "test_a_variable_that_loads_code_from_a_path_is_refused_unless_the_owner_names_it",
        file="cotenant_agent/isolation/allow_list.py",
        line='_LOADS_CODE = ("NCCL_CONF_FILE", "TORCH_EXTENSIONS_DIR", "TORCH_*PATH")\n',
        instead="_LOADS_CODE = ()\n",
    ),
    Mutant(
        point="18",
        test="tests/contracts/test_fuzzed_calls.py::test_bytes_that_are_no_message_are_the_callers_fault",
        file="cotenant/request_decoding.py",
        line="        except (DecodeError, ValueError, RecursionError):\n",
        instead="        except ZeroDivisionError:\n",
    ),
    Mutant(
        point="18",
        test=f"{_AGENT}/test_cgroups.py::test_limits_are_written_in_the_words_of_each_version",
        file="cotenant_agent/isolation/cgroups.py",
        line="            try_write(self.pids / name / _TASKS, str(tasks_max))\n",
        instead="            pass\n",
    ),
)
"""In the order of the attack's page; a point with several parts has several."""
