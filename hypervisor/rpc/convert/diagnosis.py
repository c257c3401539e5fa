"""A diagnosis as messages of the API; pure."""

from __future__ import annotations

from collections.abc import Mapping

from hypervisor.model import Diagnosis, Verdict
from hypervisor.v1 import node_pb2 as pb

VERDICTS: Mapping[Verdict, pb.Verdict] = {
    Verdict.PASS: pb.VERDICT_PASS,
    Verdict.WARN: pb.VERDICT_WARN,
    Verdict.FAIL: pb.VERDICT_FAIL,
    Verdict.SKIP: pb.VERDICT_SKIP,
}


def diagnosis_to_proto(diagnosis: Diagnosis) -> pb.DiagnoseResponse:
    """All checks in their order."""
    return pb.DiagnoseResponse(
        checks=[
            pb.CheckResult(
                check_id=result.check_id,
                stage=result.stage,
                verdict=VERDICTS[result.verdict],
                looked_at=result.looked_at,
                evidence=result.evidence,
                cause=result.cause,
                remedy=result.remedy,
            )
            for result in diagnosis.results
        ],
        first_broken=diagnosis.first_broken,
    )
