"""What secrets look like: their names, their forms, and how they are assigned. Patterns only.

Nothing here goes back over what it has matched, or what may be repeated has an end, so that a long line takes time by
its length only.
"""

from __future__ import annotations

import re

REMOVED = "<removed>"
ADDRESS = "<address>"
_WORDS = (
    r"password|passwd|passphrase|passcode|pwd|(?<![a-z])pass(?![a-z])|[_-]pw(?![a-z])|secret|token|credential|cookie"
    r"|[_-]creds?(?![a-z])|authorization|(?<![a-z])auth(?![a-z])|basic[_-]?auth|(?<![a-z])psk(?![a-z])|session[_-]?id"
    r"|(?<![a-z])sk(?![a-z])|(?<![a-z])dsn(?![a-z])|webhook[_-]?url|(?:key|certificate)[_-]?data|community[_-]?string"
    r"|(?:api|access|account|shared|private|secret|encryption|signing|licen[cs]e|client|master|ssh|tls|server)"
    r"[ ._-]?(?:access[ _-]?)?key"
    r"|connection[_-]?string|registration[_-]?code|\u5bc6\u7801|\u53e3\u4ee4|\u5bc6\u94a5|\u4ee4\u724c"
    # The same in German, French, Spanish, Portuguese, Russian, Japanese, Korean.
    r"|passwort|kennwort|mot[ _]de[ _]passe|contrase(?:\u00f1|n)a|(?<![a-z])senha|\u043f\u0430\u0440\u043e\u043b\u044c"
    r"|\u30d1\u30b9\u30ef\u30fc\u30c9|\ube44\ubc00\ubc88\ud638"
)
WORD = re.compile(rf"(?i){_WORDS}")
_TAIL = r"[\w.-]{0,80}+"
# JSON may write any letter of a name by its number.
LETTER_BY_NUMBER = re.compile(r"\\u00(3[0-9]|4[1-9a-f]|5[0-9a]|6[1-9a-f]|7[0-9a])", re.IGNORECASE)
# What has the letters of base64 and is no path: as long as a key it is one; a shorter one is looked into.
BASE64 = re.compile(r"(?<![\w+/=.:@$-])[A-Za-z0-9+][A-Za-z0-9+/]{15,}+={0,2}(?![\w=-])")
LONG_BASE64 = 40

FORMS: tuple[tuple[re.Pattern[str], str], ...] = (
    # Lines of nothing but base64: keys whose head or foot was cut off.
    (re.compile(r"(?m)^[ \t]*[A-Za-z0-9+/]{40,}={0,2}[ \t]*$"), REMOVED),
    # No group is possessive here: Python before 3.11.5 ends such a one too early (cpython#106052).
    (re.compile(r"(?m)^(Private-Lines:[^\n]*\n)(?:(?!Private-MAC)[^\n]*\n)*"), rf"\1{REMOVED}\n"),
    (re.compile(r"(?m)^(Private-MAC:[ \t]*)\S+"), rf"\1{REMOVED}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), rf"\1 {REMOVED}"),
    # JSON or a key in base64: JWTs of any number of parts, settings of registries, data of kubeconfigs.
    (re.compile(r"(?<![\w+/])(?:eyJ|LS0tLS)[\w+/=-]{8,}+(?:\.[\w-]*+)*"), REMOVED),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bLTAI[A-Za-z0-9]{12,30}\b|\bAKID[A-Za-z0-9]{13,40}\b"), REMOVED),
    (
        re.compile(
            r"\b(?:hf|gh[oprsu]|github_pat|glpat|sk|pk|rk|npm|pypi|dop_v1|xox[abeps]|nvapi)[-_][\w-]{16,}"
            r"|\bhv[bsr]\.[\w-]{16,}|\bs\.[A-Za-z0-9]{24,}|\bSK[0-9a-f]{32}\b|\bAGE-SECRET-KEY-1[0-9A-Z]+"
        ),
        REMOVED,
    ),
    (
        re.compile(r"\b(?:AIza[\w-]{20,}|ya29\.[\w-]{16,}|SG\.[\w-]{8,}\.[\w-]{8,}|[a-z0-9]{6}\.[a-z0-9]{16}\b)"),
        REMOVED,
    ),
    # Addresses to which anybody may post who knows them.
    (
        re.compile(
            r"((?:hooks\.slack\.com/\w{1,20}/|discord(?:app)?\.com/api/webhooks/|\.office\.com/webhook\w{0,20}/"
            r"|open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/v2/hook/))[^\s\"'\0]+"
        ),
        rf"\1{REMOVED}",
    ),
    (re.compile(r"\$(?:apr1|1|2[aby]|5|6|7|y|argon2[a-z]*)\$[^\s:\"']+|\{S?SHA\d{0,3}\}[\w+/=]{8,}"), REMOVED),
    # A line of a password file: host, port, database, user, password.
    (re.compile(r"(?m)^([^:\s]{1,256}+:(?:\d{1,5}+|\*):[^:\s]{1,64}+:[^:\s]{1,64}+:)[^\s:]+$"), rf"\1{REMOVED}"),
    # The last @ ends who it is; but the digest of an image comes after one too.
    (re.compile(r"(://)[^\s\"'<>\0]{1,256}@(?!sha256:)"), rf"\1{REMOVED}@"),
    (re.compile(r"([?&#][\w.%-]{1,60}=)[^\s&#\"'\0]+"), rf"\1{REMOVED}"),
    (re.compile(r"((?<=\s)(?:-u|--user)[ =\0])[^\s:\0]*:[^\s\0]+"), rf"\1{REMOVED}"),
    (re.compile(r"(\bmysql\w*\b[^\n]{0,200}?\s-p)\S+"), rf"\1{REMOVED}"),
    (re.compile(r"(\b(?:sshpass|login)\b[^\n]{0,200}?\s-p[ =\t]{0,4})[^\s\0]+"), rf"\1{REMOVED}"),
    (re.compile(r"(?i)\b(password|passwd|passphrase)([ \t]+(?:is[ \t]+)?)[^\s:=]\S*"), rf"\1\2{REMOVED}"),
    # Said in words: what has letters and digits and is as long as a key, or is quoted. After "secret" Kubernetes names
    # one, in quotes.
    (
        re.compile(
            r"(?i)((?:token|(?<![a-z])(?:api|access|secret)[ _-]?key)[\"']?[ \t]+(?:is[ \t]+)?)"
            r"(?:(?=[^\s\"']{0,200}\d)(?=[^\s\"']{0,200}[a-z])[\w.~+/=-]{12,}|\"[^\"\n]{4,512}\"|'[^'\n]{4,512}')"
        ),
        rf"\1{REMOVED}",
    ),
    (re.compile(r"(\b(?:vault)[ \t\0]+login[ \t\0]+)(?!-)[^\s\0=]+(?=[\s\0]|$)"), rf"\1{REMOVED}"),
    (
        re.compile(r"(\b(?:echo|printf)[ \t]+)[^\s|]{1,512}([ \t]*\|[^|\n]{0,200}(?:password-stdin|passwd|login))"),
        rf"\1{REMOVED}\2",
    ),
    (re.compile(r"(\bwandb[ \t\0]+login[ \t\0]+(?:--relogin[ \t\0]+)?)(?!-)[^\s\0]+"), rf"\1{REMOVED}"),
    (
        re.compile(
            r"\b(?:10(?:\.\d{1,3}){3}|192\.168(?:\.\d{1,3}){2}|172\.(?:1[6-9]|2\d|3[01])(?:\.\d{1,3}){2}"
            r"|100\.(?:6[4-9]|[7-9]\d|1[01]\d|12[0-7])(?:\.\d{1,3}){2})\b"
        ),
        ADDRESS,
    ),
    (re.compile(r"(?i)(?<![\w:])(?:f[cd][0-9a-f]{2}|fe[89ab][0-9a-f]):[0-9a-f:]{2,}"), ADDRESS),
)
# With a name in them that has to be looked at: what stands below a key of YAML, flags, elements of XML.
NAMED: tuple[re.Pattern[str], ...] = (
    re.compile(
        r"(?m)^(?P<head>(?P<indent>[ \t]*+)(?:- )?[\"']?(?P<name>[\w.-]{1,80}+)[\"']?[ \t]*:)(?:[ \t][^\n]*+|\r)?"
        r"(?:(?:\n(?:(?P=indent)[ \t]+[^\s][^\n]*|[ \t\r]*(?=\n)))+|(?:\n(?P=indent)[ \t]*- [^\n]*)+)"
    ),
    re.compile(r"(?P<head>--(?P<name>[\w.-]{1,80}+)[= \0])(?:\\\r?\n[ \t]{0,80})?[^\s\0]+"),
    re.compile(r"(?P<head><(?P<name>[\w.:-]{1,80}+)>)[^<]*"),
    re.compile(r"(?P<head>\bkey=\"(?P<name>[\w.:-]{1,80}+)\"[ \t]{1,20}value=)\"[^\"\n]*\""),
)
# A variable of a container, as the cluster's objects have it: name and value apart, in YAML and in JSON.
VARIABLES: tuple[re.Pattern[str], ...] = (
    re.compile(
        r"(?m)^(?P<head>[ \t]*+(?:- )?name:[ \t]*[\"']?(?P<name>[\w.-]{1,80}+)[\"']?[ \t\r]*\n[ \t]*value:[ \t]*)[^\n]+"
    ),
    re.compile(
        r"(?P<head>(?P<q>\\{0,8}\")name(?P=q)\s{0,80}:\s{0,80}(?P=q)(?P<name>[\w.-]{1,80}+)(?P=q)\s{0,80},\s{0,80}"
        r"(?P=q)value(?P=q)\s{0,80}:\s{0,80}(?P=q))(?:(?!(?P=q))(?:\\.|[^\\])){0,512}"
    ),
)
# A name and its value in TOML, YAML, JSON, also JSON within JSON or within a page, or a log. What is quoted stays
# quoted, so that the file can still be read; braces and brackets go as a whole. What is not quoted goes to the end of
# its line after a colon, where it may have blanks.
ASSIGNED = re.compile(
    rf"(?i)(?P<name>(?:{_WORDS}){_TAIL})"
    r"(?P<sign>(?P<closing>\\*[\"']|&quot;|&\#34;)?[ \t]*(?:=>|:=|=|:|\uff1a|\uff1d|%3[AD])[ \t]*)"
    r"(?:(?P<long>'''|\"\"\")(?:(?!(?P=long))[\s\S]){0,4000}(?P=long)"
    r"|(?P<quote>\\*[\"'])(?:(?!(?P=quote))(?:\\.|[^\\])){0,512}(?P=quote)"
    r"|\{(?:[^{}]|\{[^{}]{0,2000}\}){0,2000}\}|\[[^\[\]]{0,4000}\]"
    r"|(?(closing)[^\s,}\]\0]+|(?:(?:(?<==)|(?<==[ \t]))[^\s\"',;&\0]+|[^\n\0]+)))"
)
KEY_BEGINS = re.compile(r"----[- ]BEGIN [A-Z0-9 ]{1,40}----")
KEY_ENDS = re.compile(r"----[- ]END [A-Z0-9 ]{1,40}-{4,5}")
# A line of a container's log; P is one that goes on in the next.
CUT_LINE = re.compile(r"\S+ std(?:out|err) (?P<tag>[PF]) ")
