"""The Helm chart: plain files made from it, values that it takes and refuses, and what it promises in each of them."""

from __future__ import annotations

import copy
import functools
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click import Command

from buildsupport import manifests
from buildsupport.manifests import CHART, DEPLOY, HELM, NAMESPACE, HelmError, files, render
from hypervisor.cli.aggregator import aggregator
from hypervisor.cli.run import run
from hypervisor.cli.worker import launcher
from hypervisor.config import setting_names
from tests.monitoring.queries import alerts
from tests.monitoring.runbooks import commands

pytestmark = pytest.mark.skipif(not HELM.exists(), reason="Helm's wheel is for Linux on x86_64 only")

EVERYTHING = (
    "podMonitor.enabled=true",
    "prometheusRule.enabled=true",
    "dashboards.enabled=true",
    "node.workers.enabled=true",
    "node.settings.tflops_ratio=2",
    "node.settings.mig_geometry={all: 7x1g.10gb}",
    "aggregator.mtls.enabled=true",
    "pool.create=true",
    "driverProbe.nodes={gpu-1}",
)


@functools.cache
def parsed(*values: str) -> dict[tuple[str, str], dict[str, Any]]:
    text = render(*(argument for value in values for argument in ("--set", value)))
    return {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text) if each}


def rendered(*values: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Objects by kind and name, the caller's own."""
    return copy.deepcopy(parsed(*values))


def pod_specs(objects: dict[tuple[str, str], dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for (kind, name), each in objects.items():
        if kind in {"DaemonSet", "Deployment", "Job"}:
            yield name, each["spec"]["template"]["spec"]


def test_plain_files_and_the_table_of_values_are_made_from_the_chart() -> None:
    stale = [path.name for path, content in files().items() if path.read_text() != content]
    assert stale == [], "run `make manifests`"
    made = {path.name for path in files() if path.parent == DEPLOY}
    # A patch for the DaemonSet, which the next test holds against the chart.
    assert {path.name for path in DEPLOY.glob("*.yaml")} - made == {"node-reports.yaml"}


def test_the_patch_makes_of_the_lone_nodes_those_of_a_cluster() -> None:
    lone = rendered("aggregator.enabled=false")[("DaemonSet", "hypervisor")]["spec"]["template"]["spec"]
    wanted = rendered()[("DaemonSet", "hypervisor")]["spec"]["template"]["spec"]
    patch = yaml.safe_load((DEPLOY / "node-reports.yaml").read_text())["spec"]["template"]["spec"]
    (container,), (more,) = lone["containers"], patch["containers"]
    # As the API server merges these lists: by name, and by path.
    container["env"] += more["env"]
    container["volumeMounts"] += more["volumeMounts"]
    lone["volumes"] += patch["volumes"]
    assert lone == wanted


def test_each_value_is_described_and_has_a_schema() -> None:
    text = (CHART / "values.yaml").read_text()
    schema = json.loads((CHART / "values.schema.json").read_text())
    described = {path for path, _ in manifests.value_rows(text)}

    def leaves(values: dict[str, Any], schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
        assert schema["additionalProperties"] is False, path
        assert set(schema["properties"]) - {"global"} == set(values), path
        for name, value in values.items():
            place = ".".join((*path, name))
            if place in described:
                yield place
            else:
                yield from leaves(value, schema["properties"][name], (*path, name))

    assert set(leaves(yaml.safe_load(text), schema)) == described


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("image.tga=1", "Additional property tga is not allowed"),
        ("image.digest=sha256:12", "Does not match pattern"),
        ("image.pullPolicy=Sometimes", "must be one of the following"),
        ("node.settings.tflop_ratio=2", 'Property name of "tflop_ratio" does not match'),
        ("node.kubeletDir=var/lib/kubelet", "Does not match pattern"),
        ("node.resources.limits.memory=lots", "Does not match pattern"),
        ("aggregator.replicas=0", "Must be greater than or equal to 1"),
        ("aggregator.tls.source=cert-manager", "aggregator.tls.issuer.name"),
        ("aggregator.readerAccounts={nobody}", "Does not match pattern"),
        ("prometheusRule.runbookUrl=", "prometheusRule.runbookUrl"),
        ("networkPolicy.metricsFrom=monitoring", "Invalid type"),
    ],
)
def test_values_that_can_not_be_right_are_refused(value: str, complaint: str) -> None:
    with pytest.raises(HelmError, match=re.escape(complaint)):
        render("--set", value)


@pytest.mark.parametrize("values", sorted((CHART / "values").glob("*.yaml")), ids=lambda path: path.stem)
def test_images_come_from_the_registry_that_values_name(values: Path) -> None:
    wanted = yaml.safe_load(values.read_text())["image"]
    text = render("--values", values, "--set", "driverProbe.nodes={a}", "--set", "node.workers.enabled=true")
    objects = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text) if each}
    specs = dict(pod_specs(objects))
    assert len(specs) == 4
    for spec in specs.values():
        (container,) = spec["containers"]
        assert container["image"] == f"{wanted['registry']}/gpu-hypervisor:0.1.0"
        assert [each["name"] for each in spec.get("imagePullSecrets", ())] == wanted.get("pullSecrets", [])


def test_an_image_may_be_named_by_digest() -> None:
    digest = "sha256:" + "0123456789abcdef" * 4
    for _, spec in pod_specs(rendered(f"image.digest={digest}", "image.registry=r.example:5000/gpu/")):
        assert spec["containers"][0]["image"] == f"r.example:5000/gpu/gpu-hypervisor:0.1.0@{digest}"


def test_programs_take_the_arguments_that_they_are_given() -> None:
    specs = dict(pod_specs(rendered(*EVERYTHING)))
    programs: dict[str, tuple[Command, int]] = {
        "hypervisor": (run, 1),
        "tensor-fusion-sys-controller": (aggregator, 1),
        "hypervisor-workers": (launcher, 2),
    }
    for name, (command, words) in programs.items():
        taken = {option for parameter in command.params for option in parameter.opts}
        given = specs[name]["containers"][0]["args"][words:]
        assert {argument.partition("=")[0] for argument in given} <= taken, name
    environment = {each["name"] for each in specs["hypervisor"]["containers"][0]["env"]}
    settings = {name.removeprefix("HYPERVISOR_").lower() for name in environment if name.startswith("HYPERVISOR_")}
    assert settings <= set(setting_names())


def test_settings_become_the_daemons_file(tmp_path: Path) -> None:
    from hypervisor.config import load

    objects = rendered(*EVERYTHING)
    file = tmp_path / "hypervisor.toml"
    file.write_text(objects[("ConfigMap", "tensor-fusion-hypervisor")]["data"]["hypervisor.toml"])
    settings = load(file=file, environment={}, flags={})
    assert (settings.tflops_ratio, settings.mig_geometry) == (2.0, ("all: 7x1g.10gb",))
    before = objects[("DaemonSet", "hypervisor")]["spec"]["template"]["metadata"]["annotations"]
    after = rendered("node.settings.tflops_ratio=3")[("DaemonSet", "hypervisor")]["spec"]["template"]["metadata"]
    assert before != after["annotations"], "another file makes the Pods anew"


def test_updates_keep_limits_and_workers() -> None:
    """One node at a time, the old daemon gone before the new one comes; limit files and state are the host's; the Pod
    of workers is never renewed by itself."""
    objects = rendered(*EVERYTHING)
    daemon = objects[("DaemonSet", "hypervisor")]["spec"]
    assert daemon["minReadySeconds"] > 0
    assert daemon["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0},
    }
    spec = daemon["template"]["spec"]
    places = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    mounts = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    for name, path in places.items():
        assert mounts[name] == path, "kubelet and the daemon speak of the same paths"
    assert {"/run/tensor-fusion", "/var/lib/hypervisor"} <= set(places.values())
    workers = objects[("DaemonSet", "hypervisor-workers")]["spec"]
    assert workers["updateStrategy"] == {"type": "OnDelete"}
    for each in (spec, workers["template"]["spec"]):
        assert each["hostPID"] is True
        assert each["priorityClassName"] == "system-node-critical"
        assert each["tolerations"] == [{"operator": "Exists"}]
        # The image's own user is nobody in particular.
        assert each["containers"][0]["securityContext"]["runAsUser"] == 0


def test_the_aggregator_is_two_and_no_more_than_it_needs_to_be() -> None:
    objects = rendered()
    deployment = objects[("Deployment", "tensor-fusion-sys-controller")]["spec"]
    assert deployment["replicas"] == 2
    spec = deployment["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    context = spec["containers"][0]["securityContext"]
    assert context == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "podAntiAffinity" in spec["affinity"]
    assert ("PodDisruptionBudget", "tensor-fusion-aggregator") in objects
    assert not any("hostPath" in volume for volume in spec["volumes"])


def test_network_policies_are_for_ports_that_are_there() -> None:
    objects = rendered(*EVERYTHING)
    templates = [each["spec"]["template"] for (kind, _), each in objects.items() if kind in {"DaemonSet", "Deployment"}]
    policies = [each["spec"] for (kind, _), each in objects.items() if kind == "NetworkPolicy"]
    assert len(policies) == 3
    for policy in policies:
        wanted = policy["podSelector"]["matchLabels"].items()
        (template,) = [each for each in templates if wanted <= each["metadata"]["labels"].items()]
        named = {port["name"] for each in template["spec"]["containers"] for port in each.get("ports", ())}
        assert {port["port"] for rule in policy.get("ingress", ()) for port in rule["ports"]} == named


def test_a_certificate_that_helm_makes_is_the_services_and_known_to_nodes() -> None:
    from base64 import b64decode

    from cryptography import x509

    objects = rendered("aggregator.tls.source=generated")
    secret = {
        name: b64decode(text) for name, text in objects[("Secret", "tensor-fusion-aggregator-tls")]["data"].items()
    }
    authority, own = (x509.load_pem_x509_certificate(secret[name]) for name in ("ca.crt", "tls.crt"))
    own.verify_directly_issued_by(authority)
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    environment = rendered()[("DaemonSet", "hypervisor")]["spec"]["template"]["spec"]["containers"][0]["env"]
    (address,) = [each["value"] for each in environment if each["name"] == "HYPERVISOR_REPORT_TO"]
    assert address.partition(":")[0] in names.get_values_for_type(x509.DNSName)
    known = objects[("ConfigMap", "tensor-fusion-aggregator-ca")]["data"]["ca.crt"]
    assert known.strip() == secret["ca.crt"].decode().strip()


def test_listeners_for_client_certificates_need_an_authority_that_signs_clients() -> None:
    with pytest.raises(HelmError, match=r"set aggregator\.tls\.source to secret"):
        render("--set", "aggregator.mtls.enabled=true", "--set", "aggregator.tls.source=generated")
    objects = rendered(*EVERYTHING)
    (port,) = objects[("Service", "tensor-fusion-aggregator-mtls")]["spec"]["ports"]
    (container,) = objects[("Deployment", "tensor-fusion-sys-controller")]["spec"]["template"]["spec"]["containers"]
    assert f"--listen=0.0.0.0:{port['port']}" in container["args"]
    assert {"name": port["targetPort"], "containerPort": port["port"]} in container["ports"]


def test_another_namespace_is_everywhere() -> None:
    text = render("--namespace", "gpus", *(word for value in EVERYTHING for word in ("--set", value)))
    # The Deployment's and the policy's own names hold the word too.
    names = {"tensor-fusion-sys-controller", "tensor-fusion-system-annotations"}
    assert set(re.findall(rf"[\w-]*{NAMESPACE}[\w-]*", text)) == names
    assert "--reporter-account=gpus/tensor-fusion-hypervisor-sa" in text


def test_rules_and_monitors_have_only_what_the_operator_knows() -> None:
    """Fields of monitoring.coreos.com/v1: prometheus-operator, Documentation/api-reference, PodMonitorSpec and Rule."""
    url = "https://docs.example/runbooks"
    objects = rendered(*EVERYTHING, f"prometheusRule.runbookUrl={url}", "podMonitor.labels.release=p")
    rule = objects[("PrometheusRule", "gpu-hypervisor")]
    assert set(rule["spec"]) == {"groups"}
    found = [each for group in rule["spec"]["groups"] for each in group["rules"]]
    assert [each["alert"] for each in found] == [each["alert"] for each in alerts()]
    for each, plain in zip(found, alerts(), strict=True):
        assert set(each) <= {"alert", "expr", "for", "labels", "annotations", "keep_firing_for"}
        assert each["annotations"]["runbook_url"] == f"{url}#{each['alert'].lower()}"
        assert each["annotations"]["summary"] == plain["annotations"]["summary"], "Prometheus's braces are left alone"
    monitors = [each for (kind, _), each in objects.items() if kind == "PodMonitor"]
    assert len(monitors) == 2
    for monitor in monitors:
        assert set(monitor["spec"]) <= {"selector", "podMetricsEndpoints", "namespaceSelector"}
        assert monitor["metadata"]["labels"] == {"release": "p"}
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            assert set(endpoint) <= {"port", "interval", "honorLabels", "relabelings", "path", "scheme"}
            for step in endpoint["relabelings"]:
                assert set(step) <= {"action", "sourceLabels", "targetLabel", "replacement", "regex", "separator"}


def test_dashboards_reach_their_config_maps_whole() -> None:
    objects = rendered(*EVERYTHING)
    for path in (DEPLOY / "dashboards").glob("*.json"):
        held = objects[("ConfigMap", f"gpu-hypervisor-dashboard-{path.stem}")]
        assert json.loads(held["data"][f"gpu-hypervisor-{path.name}"]) == json.loads(path.read_text())


def test_versions_are_the_projects() -> None:
    import tomllib

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]


def test_the_commands_of_the_docs_are_helms_and_the_charts() -> None:
    blocks = re.findall(r"```sh\n(.*?)```", manifests.DOCUMENT.read_text(), re.DOTALL)
    lines = [shlex.split(line) for block in blocks for line in block.splitlines()]
    installs = [words for words in lines if words[:2] in (["helm", "install"], ["helm", "upgrade"])]
    assert len(installs) == 4
    for words in installs:
        assert words[2:6] == ["gpu-hypervisor", "deploy/chart", "--namespace", NAMESPACE]
        render(
            *[
                str(DEPLOY.parent / word) if word.endswith(".yaml") else word
                for word in words[6:]
                if word != "--reuse-values"
            ]
        )
    names = {name for _, name in rendered(*EVERYTHING)}
    for path in re.findall(r"deploy/[\w./-]+", manifests.DOCUMENT.read_text()):
        assert (DEPLOY.parent / path.rstrip(".")).exists(), path
    for words in [*lines, *commands()]:
        for word in words if words[0] == "kubectl" else ():
            kind, slash, name = word.partition("/")
            if slash and kind in {"daemonset", "deployment"}:
                assert name in names, word
