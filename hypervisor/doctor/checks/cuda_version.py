"""Driver against CUDA: whether this node can run an image, or what runs already."""

from __future__ import annotations

from hypervisor.doctor.check import Outcome, Stage, check, failed, not_applicable, passed, unreadable, warned
from hypervisor.doctor.checks.driver import MODULE
from hypervisor.doctor.cuda import OLDEST_CUDA, CudaRequirement, needed_driver, unmet, version
from hypervisor.doctor.subject import NodeSubject


@check(
    "runtime.cuda-version",
    stage=Stage.RUNTIME,
    looks_at="the driver's version beside CUDA_VERSION and NVIDIA_REQUIRE_CUDA of an image or a Pod",
    source="article 2.5 and 4.3, with NVIDIA's table of minimum drivers instead of a comparison of numbers",
    requires=(MODULE,),
    gate=True,
)
def cuda_version(subject: NodeSubject) -> Outcome:
    """Is the driver new enough for the CUDA of the image?"""
    if subject.requirement is None:
        return not_applicable("no image was named (--cuda, --image, --pod)")
    return judge(subject.requirement, driver=subject.driver_version, cuda=_driver_cuda(subject))


def judge(requirement: CudaRequirement, *, driver: str, cuda: str) -> Outcome:
    """The outcome for one image. cuda is the version that the driver itself supports, "" when not known."""
    have = version(driver)
    if not have:
        return unreadable("no driver version is known, so that nobody can say which CUDA it runs")
    evidence = [f"driver {driver}" + (f" (CUDA {cuda})" if cuda else ""), f"{requirement.origin} wants"]
    evidence[1] += f" CUDA {requirement.cuda}" if requirement.cuda else f" {requirement.constraint}"
    missing = unmet(requirement.constraint, driver=driver, cuda=cuda)
    needed = needed_driver(requirement.cuda)
    if missing and not requirement.compatibility_libraries:
        return failed(
            [*evidence, f"not met: {missing}"],
            "the image says itself that this driver is too old, and the NVIDIA runtime refuses to start it",
            "upgrade the driver, or use an image of an older CUDA",
        )
    if needed is None:
        return _judge_unlisted(requirement, cuda, evidence) if requirement.cuda else passed(*evidence)
    least, exact = needed
    if have < least and not requirement.compatibility_libraries:
        return _insufficient([*evidence, f"it takes driver {_text(least)}"], f"to {_text(exact)} or newer")
    if have < exact:
        return _by_compatibility([*evidence, f"driver {_text(exact)} came with it"], f" to {_text(exact)}")
    if cuda and version(requirement.cuda)[:2] > version(cuda)[:2]:
        return _by_compatibility(evidence, "")
    return passed(*evidence)


def _judge_unlisted(requirement: CudaRequirement, cuda: str, evidence: list[str]) -> Outcome:
    """Of a CUDA version that is in no table of ours: by the one that the driver says it supports."""
    wanted, supported = version(requirement.cuda)[:2], version(cuda)[:2]
    if wanted < OLDEST_CUDA or (supported and wanted <= supported):
        return passed(*evidence)
    if not supported:
        return unreadable(f"CUDA {requirement.cuda} is not in the table, and the driver does not say what it supports")
    if wanted[0] == supported[0]:
        return _by_compatibility(evidence, "")
    if requirement.compatibility_libraries:
        return passed(*evidence, "the image brings forward-compatibility libraries")
    return _insufficient(evidence, f"to one that has CUDA {requirement.cuda}")


def _by_compatibility(evidence: list[str], upgrade: str) -> Outcome:
    return warned(
        evidence,
        "the program starts by minor-version compatibility; what this CUDA version added, and PTX made by it, fail on"
        " this driver",
        f"upgrade the driver{upgrade}, or use an image of the CUDA that the driver came with",
    )


def _insufficient(evidence: list[str], upgrade: str) -> Outcome:
    return failed(
        evidence,
        "'CUDA driver version is insufficient for CUDA runtime version': drivers run older CUDA and not newer",
        f"upgrade the driver {upgrade}, or use an image of an older CUDA; a data-centre card may also use the image's"
        " forward-compatibility libraries (cuda-compat)",
    )


def _driver_cuda(subject: NodeSubject) -> str:
    return subject.facts.cuda_version if subject.facts is not None else ""


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in numbers)


CHECKS = (cuda_version,)
