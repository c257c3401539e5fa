"""Reports on other node agents, each with the test that does the same to ours. A row without a test fails.

Numbers are rows of the project's notes on the field (kubelet interplay, metrics and attribution, container access);
KDP: NVIDIA's device plugin, DCGME: dcgm-exporter, and so on. What concerns no node says so.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
KUBE = "tests/integration/kube"
GPU = "tests/integration/gpu"
ROWS = {
    # kubelet interplay
    38: (f"{KUBE}/test_kubelet.py", "test_kubelet_restarts_twice_quickly_and_has_everything_again"),
    39: (f"{KUBE}/test_registration.py", "test_what_kubelet_forgot_while_the_stream_lives_is_registered_anew"),
    41: (f"{KUBE}/test_field_reports.py", "test_restarts_of_kubelet_leak_no_descriptors"),
    42: (f"{KUBE}/test_kubelet.py", "test_kubelet_restarts_twice_quickly_and_has_everything_again"),
    44: (
        f"{KUBE}/test_field_reports.py",
        "test_a_daemon_that_dies_offers_nothing_and_one_that_stops_waits_for_no_stream",
    ),
    47: (f"{KUBE}/test_pods.py", "test_the_pod_is_known_after_kubelet_asked"),
    48: (f"{KUBE}/test_field_reports.py", "test_registration_and_grants_need_no_api_server"),
    49: (f"{KUBE}/test_field_reports.py", "test_nothing_of_a_pod_or_a_node_is_written_but_events"),
    50: (
        f"{KUBE}/test_field_reports.py",
        "test_a_daemon_that_dies_offers_nothing_and_one_that_stops_waits_for_no_stream",
    ),
    51: (f"{KUBE}/test_field_reports.py", "test_a_new_mig_layout_is_no_reason_to_register_anew"),
    53: (
        "tests/unit/allocations/test_adoption.py",
        "test_a_limit_file_of_another_major_version_stays_enforced_and_is_told",
    ),
    54: (f"{KUBE}/test_field_reports.py", "test_pods_that_come_and_go_leave_nothing"),
    55: ("tests/integration/node/test_daemon.py", "test_a_second_daemon_on_the_same_limit_files_is_refused"),
    # metrics and attribution
    56: ("tests/unit/kube/test_use_and_files.py", "test_a_foreign_card_is_foreign_with_its_instances"),
    57: (f"{KUBE}/test_pods.py", "test_native_gpus_of_another_plugin_hold_the_card"),
    59: (f"{KUBE}/test_field_reports.py", "test_without_pod_resources_the_node_says_so_and_binds_by_the_checkpoint"),
    60: (f"{GPU}/test_faults.py", "test_a_gpu_that_hangs_is_left_out_and_the_others_go_on"),
    63: (
        "tests/integration/health/test_life.py",
        "test_a_hang_of_one_card_delays_no_other_output_by_more_than_a_second",
    ),
    64: (f"{KUBE}/test_field_reports.py", "test_a_new_mig_layout_is_no_reason_to_register_anew"),
    65: (f"{GPU}/test_faults.py", "test_a_feature_that_a_gpu_lacks_is_absent_with_a_reason_and_no_condition"),
    66: (f"{KUBE}/test_field_reports.py", "test_pods_that_come_and_go_leave_nothing"),
    67: (f"{GPU}/test_survival.py", "test_detach_ends_every_handle_and_leaves_the_others"),
    68: (f"{GPU}/test_survival.py", "test_kill_9_amid_a_slow_call_is_no_cards_fault"),
    69: (f"{KUBE}/test_processes.py", "test_without_the_hosts_process_namespace_a_process_is_hidden_and_not_ended"),
    70: (f"{KUBE}/test_pods.py", "test_pods_that_end_give_back_and_their_ids_come_again"),
    72: ("tests/integration/health/test_platforms.py", "test_each_platform_is_well_and_tells_what_it_can"),
    73: (f"{GPU}/test_load.py", "test_absurd_memory_of_a_process_is_unknown_and_not_summed"),
    75: ("tests/unit/allocations/test_admission.py", "test_parts_that_sum_to_more_than_the_card_by_a_hair_are_not"),
    76: (f"{KUBE}/test_pods.py", "test_the_same_replicas_without_the_library_or_with_the_limit_doubled_are_not"),
    # container access
    94: ("tests/integration/whole/test_lost_nodes.py", "test_row_94_lost_device_nodes_are_told"),
    96: (f"{GPU}/test_survival.py", "test_detach_ends_every_handle_and_leaves_the_others"),
    97: (f"{KUBE}/test_kubelet.py", "test_kubelet_restarts_twice_quickly_and_has_everything_again"),
}
ELSEWHERE = {43: "the aggregator's: it is about the Node object, which a node does not read"}
# The rows of the three tables, as they are numbered there.
ALL = {38, 39, *range(41, 45), *range(47, 52), *range(53, 58), 59, 60, *range(63, 71), 72, 73, 75, 76, 94, 96, 97}


def test_no_row_is_forgotten() -> None:
    assert set(ROWS) | set(ELSEWHERE) == ALL
    assert not set(ROWS) & set(ELSEWHERE)


@pytest.mark.parametrize("row", sorted(ROWS))
def test_a_row_has_its_test(row: int) -> None:
    file, name = ROWS[row]
    tree = ast.parse((ROOT / file).read_text())
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
