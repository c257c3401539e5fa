"""Secrets as they are met in files, logs and commands: none is left, and what is no secret stays."""

from __future__ import annotations

import base64
import json
import time

import pytest

from hypervisor.doctor.kubernetes import DIRECTORY
from hypervisor.doctor.redaction import redact, redact_text

SECRET = "s3cr3tV4lue"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


PEM = f"-----BEGIN PRIVATE KEY-----\nMIIE{SECRET}\n-----END PRIVATE KEY-----\n"
DOCKER = {"auths": {"registry.example": {"auth": encoded(f"user:{SECRET}")}}}
CRI = "2026-01-01T00:00:00Z stdout"
# The text, and what of it must not be left.
SHAPES: dict[str, tuple[str, str]] = {
    # headers and commands
    "bearer": (f"curl -H 'authorization: bearer {SECRET}' https://x", SECRET),
    "own header": (f'curl -H "X-Api-Key: {SECRET}"', SECRET),
    "basic": ("Proxy-Authorization: Basic dTpw", "dTpw"),
    "cookie": (f"Set-Cookie: sid={SECRET}; Path=/", SECRET),
    "flag": (f"tool --api-key {SECRET} --x", SECRET),
    "flag on the next line": (f"tool --api-key \\\n    {SECRET}", SECRET),
    "user and password": (f"curl --user=admin:{SECRET} https://x", SECRET),
    "login": (f"docker login -u me -p {SECRET} registry.example", SECRET),
    "login by an argument": (f"wandb login --relogin {SECRET}", SECRET),
    "told in a sentence": (f"the password is {SECRET}, keep it", SECRET),
    "token told in a sentence": (f"with token {SECRET}7, go on", SECRET),
    "quoted after its name": (f"token '{SECRET}'", SECRET),
    "variable without a sign": (f"WANDB_API_KEY {SECRET}9", SECRET),
    "login of a vault": (f"vault login {SECRET}", SECRET),
    "through a pipe": (f"echo {SECRET} | docker login --password-stdin", SECRET),
    "key and value": (f'<add key="ApiKey" value="{SECRET}"/>', SECRET),
    "sshpass": (f"sshpass -p {SECRET} ssh h", SECRET),
    "values of a chart": (f"helm upgrade --set auth.password={SECRET},x=1", SECRET),
    # addresses
    "userinfo": (f"https://user:{SECRET}@host/x", SECRET),
    "slash in a password": (f"postgres://user:a/{SECRET}@host/db", SECRET),
    "at in a password": (f"redis://:a@{SECRET}@host:6379/0", SECRET),
    "signature": (f"https://blob.example/c?sv=1&sig={SECRET}%3D", SECRET),
    "fragment": (f"https://h/cb#access_token={SECRET}", SECRET),
    "hook": (f"https://hooks.slack.com/services/T0/B0/{SECRET}", SECRET),
    "other hook": (f"https://discord.com/api/webhooks/12/{SECRET}", SECRET),
    "one-time password": (f"otpauth://totp/x?secret={SECRET}", SECRET),
    # keys
    "pem": (PEM, SECRET),
    "pem in json": (json.dumps({"private_key": PEM}), SECRET),
    "pem of ssh2": (
        f"---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\n{SECRET}\n---- END SSH2 ENCRYPTED PRIVATE KEY ----",
        SECRET,
    ),
    "pem of putty": (f"Private-Lines: 2\n{SECRET}AAAA\n{SECRET}\nPrivate-MAC: {SECRET}\n", SECRET),
    "pem in a container's log": (
        f"{CRI} F -----BEGIN PRIVATE KEY-----\n{CRI} F MIIE{SECRET}\n{CRI} F -----END PRIVATE KEY-----",
        SECRET,
    ),
    "body of a pem": (f"{CRI} F MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQD{SECRET}", SECRET),
    "wireguard": ("PrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=", "yAnz5TF"),
    "age": ("AGE-SECRET-KEY-1QQQS3CR3TV4LUEQQQQQQQQQQ", "S3CR3TV4LUE"),
    # settings of Kubernetes and registries
    "kubeconfig token": (f"users:\n- name: u\n  user:\n    token: {SECRET}", SECRET),
    "kubeconfig key": (f"    client-key-data: {encoded(PEM)}", encoded(PEM)[:20]),
    "kubeconfig certificate": (f"    client-certificate-data: {encoded(PEM)}", encoded(PEM)[:20]),
    "kubeconfig variable": (f"      env:\n      - name: AWS_SESSION\n        value: {SECRET}", SECRET),
    "key of a secret": (f"data:\n  tls.key: {encoded(PEM)}", encoded(PEM)[:20]),
    "variable in json": (json.dumps({"env": [{"name": "PLACE", "value": SECRET}]}), SECRET),
    "variable in json in json": (json.dumps({"pod": json.dumps([{"name": "PLACE", "value": SECRET}])}), SECRET),
    "registry": (json.dumps(DOCKER), encoded(f"user:{SECRET}")),
    "registry in base64": (f".dockerconfigjson: {encoded(json.dumps(DOCKER))}", encoded(json.dumps(DOCKER))[:30]),
    "registry token": (json.dumps({"auths": {"r": {"identitytoken": SECRET}}}), SECRET),
    # variables
    "password of a program": (f"PGPASSWORD={SECRET} psql", SECRET),
    "pass": (f"PASS={SECRET}", SECRET),
    "pw": (f"DB_PW={SECRET}", SECRET),
    "creds": (f"GCP_CREDS={SECRET}", SECRET),
    "dsn": (f"SENTRY_DSN={SECRET}", SECRET),
    # clouds and services
    "aws": ("it said wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY1", "wJalrXUtnFEMI"),
    "aws name": ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI"),
    "azure": (f"AccountName=a;AccountKey={SECRET}==;EndpointSuffix=x", SECRET),
    "azure bus": (f"Endpoint=sb://x/;SharedAccessKey={SECRET}=", SECRET),
    "google": ("AIzaSyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY", "9tSrke72"),
    "alibaba": ("LTAI5tKb4Xyz12345678abcd", "5tKb4Xyz"),
    "alibaba secret": (f"accessKeySecret: {SECRET}", SECRET),
    "tencent": ("AKIDz8krbsJ5yKBZQpn74WFkmLPx3EXAMPLE", "z8krbsJ5"),
    "huawei": (f"sk: {SECRET}", SECRET),
    "ngc": (f"nvapi-{SECRET}-1234567890", SECRET),
    "hugging face": ("hf_AbCdEfGhIjKlMnOpQrStUvWxYz", "AbCdEfGh"),
    "vault": (f"hvs.CAESI{SECRET}1234567890", SECRET),
    "vault of before": (f"s.{SECRET}1234567890abcdef", SECRET),
    "github": ("ghp_16C7e42F292c6912E7710c838347Ae178B4a", "16C7e42F"),
    "wandb": ("WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567", "0123456789"),
    # tokens of several parts, and what lies in base64
    "jwt": (f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{SECRET}", SECRET),
    "jwt over two lines": (f"eyJhbGciOiJIUzI1NiJ9.\neyJzdWIiOiIxIn0.{SECRET}", SECRET),
    "jwe": (f"eyJhbGciOiJSU0EifQ.a.b.c.{SECRET}", SECRET),
    "user and password in base64": (f"the helper said {encoded('user:' + SECRET)}", encoded(f"user:{SECRET}")),
    "password in base64": (encoded(f"password={SECRET}"), encoded(f"password={SECRET}")),
    "settings in base64": (f"config: {encoded(json.dumps({'password': SECRET}))}", encoded('{"pass')[:8]),
    # the ways of YAML, JSON, TOML and of programs
    "folded": (f"password: >-\n  abc\n  {SECRET}", SECRET),
    "over two lines": (f'password: "abc\n  {SECRET}"', SECRET),
    "on the next line": (f"password:\n  {SECRET}\nnext: 1", SECRET),
    "on the next line in DOS": (f"password:\r\n  {SECRET}\r\nnext: 1", SECRET),
    "after a backslash": (f"password: \\\n  {SECRET}", SECRET),
    "an object below": (f"password:\n  value: {SECRET}\n  other: {SECRET}", SECRET),
    "flow": (f"{{user: a, password: {SECRET}, x: 1}}", SECRET),
    "letters by number": (f'{{"pass\\u0077ord": "{SECRET}"}}', SECRET),
    "three deep": (json.dumps({"a": json.dumps({"b": json.dumps({"token": SECRET})})}), SECRET),
    "object": (json.dumps({"password": {"value": SECRET}}), SECRET),
    "object in an object": (json.dumps({"password": {"from": {"value": SECRET}}}), SECRET),
    "list": (json.dumps({"tokens": [SECRET, SECRET]}), SECRET),
    "list of toml": (f"tokens = ['{SECRET}']", SECRET),
    "lines of toml": (f"password = '''\n{SECRET}\n'''", SECRET),
    "number": ('{"pin_token": 123456789}', "123456789"),
    "python": (f"{{'password': '{SECRET}'}}", SECRET),
    "go": (f"&{{Username:admin Password:{SECRET} Auth:}}", SECRET),
    "name with a blank": (f'"api key": "{SECRET}"', SECRET),
    "page": (f"&quot;password&quot;:&quot;{SECRET}&quot;", SECRET),
    "escaped for an address": (f"password%3D{SECRET}", SECRET),
    "attribute": (f'<user name="a" password="{SECRET}"/>', SECRET),
    "coloured": (f"password: \x1b[31m{SECRET}\x1b[0m", SECRET),
    "Chinese": (f"\u5bc6\u7801: {SECRET}", SECRET),
    "wide colon": (f"\u5bc6\u7801\uff1a{SECRET}", SECRET),
    "German": (f"Passwort: {SECRET}", SECRET),
    "Spanish": (f"contrase\u00f1a = {SECRET}", SECRET),
    "French": (f"mot de passe : {SECRET}", SECRET),
    "Russian": (f"\u043f\u0430\u0440\u043e\u043b\u044c: {SECRET}", SECRET),
    "Japanese": (f"\u30d1\u30b9\u30ef\u30fc\u30c9\uff1a{SECRET}", SECRET),
    # private networks
    "shared addresses": ("from 100.64.3.7 port 1", "100.64.3.7"),
    "link-local": ("from fe80::1ff:fe23:4567:890a%eth0", "fe23:4567"),
    # files of passwords, and a log that was cut
    "netrc": (f"machine h login me password {SECRET}", SECRET),
    "pgpass": (f"host:5432:db:user:{SECRET}", SECRET),
    "shadow": (f"root:$6$salt${SECRET}:1:2", SECRET),
    "htpasswd": (f"me:{{SHA}}{encoded(SECRET)}", encoded(SECRET)[:10]),
    "cut line": (f"{CRI} P token=abc\n{CRI} P def\n{CRI} F {SECRET}\n{CRI} F next", SECRET),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_no_secret_is_left(shape: str) -> None:
    text, secret = SHAPES[shape]
    assert secret in text
    assert secret not in redact("/var/log/x.log", text)
    inside = json.loads(redact(f"{DIRECTORY}/pods.json", json.dumps({"items": [{"status": {"message": text}}]})))
    assert secret not in json.dumps(inside)


@pytest.mark.parametrize(
    "text",
    [
        "nvidia-driver 580.65.06 on 0000:18:00.0, GPU-4f1c2a5e-6b7d-8e9f-0a1b-2c3d4e5f6a7b",
        "docker://registry.example/team/image@sha256:" + "0123456789abcdef" * 4,
        "sha256 " + "0123456789abcdef" * 4,
        "/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.580.65.06",
        "authentication:\n  anonymous:\n    enabled: false\n",
        "NVRM: Xid (PCI:0000:18:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",
        "Failed to initialize NVML: Driver/library version mismatch",
        "      - name: NVIDIA_VISIBLE_DEVICES\n        value: all",
        "passed 3, bypass 0, compass, monkey: 7, keys: 3, task: x",
        "failed to get kubeletDevicePluginRegistration",
        'MountVolume.SetUp failed for volume "cert": secret "tensor-fusion-webhook-secret" not found',
        "the token has expired, a new token is wanted",
        "echo 1 | tee /sys/bus/pci/rescan",
        "from 100.128.0.1 and 8.8.8.8",
        f"{CRI} F step 1 of 2\n{CRI} P half a line\n{CRI} F and its rest",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize(
    "text",
    [
        *("password:{", "password:[", 'token:"""', "a\nPrivate-Lines: ", "eyJabcdefgh.", "host:1:b:", "password:\n "),
        *("Aa1/", "- name: a\n", '"name": "a", ', "---- BEGIN X ----", "login -p", "://a@", "LS0tLS"),
        *("token ", 'token "', "echo ", "echo a|", "api key is 1", 'key="token" value="', "mot de passe "),
        *(f"{CRI} P token=a\n", "&quot;token&quot;:{", " \n", "a:\n", " a:\n  "),
    ],
)
def test_a_hostile_text_costs_no_square_of_its_length(text: str) -> None:
    def seconds(count: int) -> float:
        begun = time.process_time()
        redact_text(text * count)
        return time.process_time() - begun

    # Four times the text may take eight times as long on a busy machine; by its square it would take sixteen.
    assert min(seconds(1200) for _ in range(3)) < 12 * max(min(seconds(300) for _ in range(3)), 0.001)
