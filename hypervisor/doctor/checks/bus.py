"""The cards themselves: on the PCI bus, bound to the right driver, with room for their memory windows."""

from __future__ import annotations

from hypervisor.doctor import pci
from hypervisor.doctor.check import Outcome, Stage, check, failed, not_applicable, passed, warned
from hypervisor.doctor.kernel_log import matching
from hypervisor.doctor.subject import NodeSubject, Platform

PRESENT = "pci.gpu-present"
BOUND = "pci.driver-bound"


def elsewhere(subject: NodeSubject) -> Outcome | None:
    """An outcome where the GPUs of this node are no PCI devices that the kernel shows; None where they should be."""
    if subject.platform is Platform.PCI:
        return None
    where = {
        Platform.SIMULATED: "the GPUs are simulated: the kernel has no part in them",
        Platform.WSL: "WSL 2: the GPUs belong to Windows, and Linux sees /dev/dxg only",
        Platform.TEGRA: "Jetson: the GPU is a part of the chip and on no PCI bus",
    }[subject.platform]
    return not_applicable(where)


@check(
    PRESENT,
    stage=Stage.DRIVER,
    looks_at="/sys/bus/pci/devices/*/{vendor,class}",
    source="article 2.1; nvidia-stack.md 7.1: the physical truth, independent of any driver",
    gate=True,
)
def gpu_present(subject: NodeSubject) -> Outcome:
    """Does the kernel see an NVIDIA GPU on the PCI bus?"""
    other = elsewhere(subject)
    if other is not None:
        return other
    if not subject.gpus_on_bus:
        return failed(
            ["no device of vendor 0x10de and class 0x0300 or 0x0302"],
            "no NVIDIA GPU is on the PCI bus of this machine, or the firmware hides it",
            "look with 'lspci -nn | grep -i nvidia'; check seating, power cables and the firmware's PCIe slots; for a"
            " virtual machine, that the card is passed through",
        )
    return passed(*(f"{gpu.address} ({gpu.device})" for gpu in subject.gpus_on_bus))


@check(
    BOUND,
    stage=Stage.DRIVER,
    looks_at="/sys/bus/pci/devices/*/driver",
    source="nvidia-stack.md 7.3: nouveau bound",
    requires=(PRESENT,),
    gate=True,
)
def driver_bound(subject: NodeSubject) -> Outcome:
    """Does no other driver hold a card?"""
    other = elsewhere(subject)
    if other is not None:
        return other
    strangers = [gpu for gpu in subject.gpus_on_bus if gpu.driver not in ("", "nvidia")]
    evidence = [f"{gpu.address} is bound to {gpu.driver}" for gpu in strangers]
    if any(gpu.driver == "nouveau" for gpu in strangers):
        return failed(
            evidence,
            "the open driver nouveau has taken the card, so that the NVIDIA driver can't",
            "write 'blacklist nouveau' and 'options nouveau modeset=0' to /etc/modprobe.d/nouveau.conf, rebuild the"
            " initramfs and restart",
        )
    if strangers and len(strangers) == len(subject.gpus_on_bus):
        return failed(
            evidence,
            "every card is held for virtual machines or by a driver that is not NVIDIA's",
            "bind the card to nvidia: remove its id from vfio-pci's options, or run the workloads in the machine that"
            " it is passed to",
        )
    if strangers:
        return warned(
            evidence,
            "some cards are held for virtual machines and can't be used here",
            "nothing, if that is meant; else remove their ids from vfio-pci's options",
        )
    return passed(*(f"{gpu.address}: {gpu.driver or 'no driver yet'}" for gpu in subject.gpus_on_bus))


@check(
    "pci.memory-windows",
    stage=Stage.DRIVER,
    looks_at="/sys/bus/pci/devices/*/resource, sriov_numvfs; the kernel's log",
    source="article 4.1, whose module options do not help; nvidia-stack.md 7.3",
    requires=(PRESENT,),
    gate=True,
)
def memory_windows(subject: NodeSubject) -> Outcome:
    """Has each card got its memory windows (BARs)?"""
    other = elsewhere(subject)
    if other is not None:
        return other
    evidence = [told for gpu in subject.gpus_on_bus if (told := pci.base_address_problem(subject.root, gpu))]
    evidence += matching(
        subject.kernel_log or (),
        r"NVRM: This PCI I/O region assigned to your NVIDIA device is invalid",
        r"BAR \d+.*(?:no space|failed to assign|can't assign)",
    )
    if not evidence:
        return passed("every card has an address for BAR 0")
    for gpu in subject.gpus_on_bus:
        functions = subject.root.word(f"{gpu.place}/sriov_numvfs")
        if functions not in ("", "0"):
            evidence.append(f"{gpu.address}: {functions} virtual functions")
    return failed(
        evidence,
        "the firmware or the kernel found no room for the card's memory windows; with SR-IOV on, each virtual function"
        " wants windows too",
        "turn on 'Above 4G Decoding' (and Resizable BAR where there is one) in the firmware and update it, or start the"
        " kernel with pci=realloc; module options such as NVreg_EnablePCIEGen4 do not move windows",
    )


@check(
    "pci.link-width",
    stage=Stage.DRIVER,
    looks_at="/sys/bus/pci/devices/*/{current,max}_link_width",
    source="nvidia-stack.md 7.1; the speed is not judged, for an idle card lowers it",
    requires=(PRESENT,),
)
def link_width(subject: NodeSubject) -> Outcome:
    """Does each card use all its PCIe lanes?"""
    other = elsewhere(subject)
    if other is not None:
        return other
    narrow = []
    for gpu in subject.gpus_on_bus:
        width = pci.link_width(subject.root, gpu)
        if width is not None and 0 < width[0] < width[1]:
            narrow.append(f"{gpu.address}: {width[0]} of {width[1]} lanes")
    if narrow:
        return warned(
            narrow,
            "the card's PCIe link trained with fewer lanes than it has: a slot, riser or contact that gives no more",
            "reseat the card; compare with what the slot offers (lspci -vv, LnkCap of the port above)",
        )
    return passed("all links have the width that their cards offer")


CHECKS = (gpu_present, driver_bound, memory_windows, link_width)
