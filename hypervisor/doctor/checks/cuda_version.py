"""Driver against CUDA: whether this node can run an image, or what runs already."""

from __future__ import annotations

from hypervisor.doctor.check import Outcome, Stage, check, failed, not_applicable, passed, warned
from hypervisor.doctor.checks.driver import MODULE
from hypervisor.doctor.cuda import CudaRequirement, needed_driver, unmet, version
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
        return not_applicable("no driver version is known")
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
        return passed(*evidence, *(["this CUDA version is not in the table"] if requirement.cuda else []))
    least, exact = needed
    if have < least and not requirement.compatibility_libraries:
        return failed(
            [*evidence, f"it takes driver {_text(least)}"],
            "'CUDA driver version is insufficient for CUDA runtime version': drivers run older CUDA and not newer",
            f"upgrade the driver to {_text(exact)} or newer, or use an image of an older CUDA; a data-centre card may"
            " also use the image's forward-compatibility libraries (cuda-compat)",
        )
    if have < exact:
        return warned(
            [*evidence, f"driver {_text(exact)} came with it"],
            "the program starts by minor-version compatibility; what this CUDA version added, and PTX made by it, fail"
            " on this driver",
            f"upgrade the driver to {_text(exact)}, or use an image of the CUDA that the driver came with",
        )
    return passed(*evidence)


def _driver_cuda(subject: NodeSubject) -> str:
    return subject.facts.cuda_version if subject.facts is not None else ""


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in numbers)


CHECKS = (cuda_version,)
