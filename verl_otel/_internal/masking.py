# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Masks possible secrets in command lines, log lines and URLs.

Of a command line only known harmless parts are kept: the program, the module, options of launchers, and overrides of verl's
configuration whose values do not look like secrets. Everything else becomes ``***``. In free text, such as the last lines of a log, values
are masked whose names or shapes are those of secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import urlsplit, urlunsplit

MASK: Final = "***"
MAX_ARGUMENT: Final = 1000
"""Characters of an argument that is kept."""
MAX_VALUE: Final = 300
MAX_ARGUMENTS: Final = 500
_NAMESPACES: Final = frozenset((
    "data", "actor_rollout_ref", "algorithm", "critic", "reward", "reward_model", "reward_manager",
    "custom_reward_function", "trainer", "ray_kwargs", "ray_init", "global_profiler", "transfer_queue",
    "distillation", "checkpoint", "skip", "sandbox_fusion", "async_training", "rollout", "actor", "ref", "model",
    "optim", "engine", "profiler", "hydra",
))  # fmt: skip
"""Top-level keys of verl's configurations."""
_OPTIONS: Final = frozenset((
    "config-name", "config-path", "config-dir", "cfg", "multirun", "run", "help", "info", "version",
    "standalone", "nnodes", "nproc-per-node", "node-rank", "rdzv-backend", "rdzv-id", "max-restarts",
    "monitor-interval", "start-method", "no-python", "local-rank", "num-nodes", "num-processes", "num-machines",
    "machine-rank", "mixed-precision", "role", "tee", "log-dir", "redirects", "local-ranks-filter",
))  # fmt: skip
"""Options of Hydra and of launchers whose values are kept."""
_PYTHON_FLAGS: Final = re.compile(r"-(?:[BEIOPRSbdiqsuv]+|OO|X|W|cn|cp|cd)")
_COLUMNS: Final = frozenset(f"{name}_key" for name in (
    "prompt", "response", "answer", "reward_fn", "reward_model", "image", "video", "audio", "input", "output",
    "label", "chosen", "rejected", "modality", "messages", "tools", "enable_thinking", "data_source",
    "extra_info", "ground_truth", "multi_modal", "teacher", "sort",
))  # fmt: skip
"""Keys of verl that name columns of a data set."""
_SPECIAL_TOKENS: Final = frozenset(
    f"{name}_token"
    for name in ["eos", "bos", "pad", "unk", "mask", "stop", "image", "video", "audio", "dp", "balance_dp"]
)
_SECRET_WORDS: Final = re.compile(
    r"passw|passphrase|secret|credential|api_?key|access_?key|private_?key|account_?key|shared_?key|env_?vars|environ$|headers?$"
    r"|(?:^|_)(?:auth|authorization|pwd|pass|pw|cookies?|sig|signature|bearer|dsn|jwt|sas|sid|netrc|key|keys|token)$"
    r"|(?:key|token|passwd|pwd|auth)$"
)
_OVERRIDE: Final = re.compile(r"(?:\+{1,2}|~)?(?P<key>[A-Za-z_][\w./@-]*)(?:=(?P<value>.*))?", re.DOTALL)
_SOURCE: Final = re.compile(r"-[A-Za-z]*c")
"""Options that are followed by source code, which is never kept: ``python -c``, ``bash -lc``."""
_SCRIPTS: Final = (".py", ".sh", "/torchrun", "/verl-otel")
_PYTHON_VALUE: Final = re.compile(r"[A-Za-z_]+(?:[=:]\w{1,24})?")
_MODULE: Final = re.compile(r"[A-Za-z_][\w.]*")
_PROGRAM: Final = re.compile(r"[\w./+~@ -]+")
_SHAPES: Final = re.compile(
    r"\b(?:sk|pk|rk)[-_][\w-]{8,}|\bhf_\w{6,}|\bgh[pousr]_\w{6,}|\bgithub_pat_\w{6,}|\bglpat-[\w-]{6,}|\bxox[a-z]-[\w-]{6,}"
    r"|\b(?:AKIA|ASIA|AIza)[\w-]{10,}|\bya29\.[\w.-]+|\beyJ[\w-]{6,}(?:\.[\w-]+)*|\bnvapi-[\w-]{6,}|\bnpm_\w{6,}|\bpypi-[\w-]{6,}"
    r"|\bSG\.[\w-]{6,}[\w.-]*|\bdop_v1_\w{6,}|\b(?:wandb_v\d_|r8_|gsk_|tgp_v1_|fw_|dckr_pat_|lin_api_|ltx_)\w{6,}"
    r"|-----BEGIN[ \w]+-----[^-]*(?:-----END[ \w]+-----)?"
    r"|(?<![A-Za-z0-9])(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{24,}(?![A-Za-z0-9])|(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{16,}={1,2}(?![\w=])"
)
"""Prefixes of the tokens of services, and long mixtures of letters and digits."""
_LOGIN: Final = re.compile(r"(?<=://)[^\s/'\"]*@")
_SCHEME: Final = re.compile(r"(?i)\b(bearer|basic|digest|token)((?:\s|%20)+)[\w.~+/=%:-]{4,}")
_QUERY: Final = re.compile(r"(://[^\s?'\"]{0,500}\?)[^\s'\"#]+")
_NAMED: Final = re.compile(
    r"""(?<![\w.])(?<!\w-)(?P<name>[A-Za-z_][\w.-]*)["']?\s*[=:]\s*(?P<value>"[^"]*"|'[^']*'|[^\s,;&}\])"']+)"""
)
_OPTION_VALUE: Final = re.compile(r"(?<!\S)(?P<name>--?[A-Za-z][\w-]*)\s+(?P<value>[^\s-]\S*)")
_USER: Final = re.compile(r"(?<!\S)(-u|--user|--proxy-user)([\s=]+)[^\s:]+:\S+")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def is_secret_name(name: str) -> bool:
    """Return whether a name may denote a secret: ``judge_key``, ``accessToken``, ``runtime_env.env_vars``.

    Columns of data sets (``prompt_key``) and numbers of tokens (``max_tokens``) do not.
    """
    return any(map(_is_secret_word, re.split(r"[./@]", name)))


def _is_secret_word(word: str) -> bool:
    flat = _CAMEL.sub("_", word).lower().replace("-", "_")
    return (
        flat not in _COLUMNS
        and not flat.endswith("reward_keys")
        and flat not in _SPECIAL_TOKENS
        and _SECRET_WORDS.search(flat) is not None
    )


def mask_command(arguments: Sequence[str]) -> list[str]:
    """Return a command line with everything masked that is not known to be harmless.

    Args:
        arguments: Program and arguments, as of `sys.orig_argv`.

    Example:
        ["python", "-m", "verl.trainer.main_ppo", "trainer.project_name=a", "***"]
    """
    shown = list(_mask_arguments([str(argument) for argument in arguments[:MAX_ARGUMENTS]]))
    return [*shown, MASK] if len(arguments) > MAX_ARGUMENTS else shown


def _mask_arguments(arguments: Sequence[str]) -> Iterator[str]:
    """Mask arguments in order: whether a value is kept depends on the option before it."""
    before, in_program = "", False
    for number, argument in enumerate(arguments):
        is_script = not in_program and "=" not in argument and argument.endswith(_SCRIPTS)
        if len(argument) > MAX_ARGUMENT or _SOURCE.fullmatch(before):
            shown = MASK
        elif number == 0 or (is_script and not argument.startswith("-")):
            shown = _keep(argument, _PROGRAM)
            in_program = number > 0 and argument.endswith(".py")
        elif before == "-m":
            shown, in_program = _keep(argument, _MODULE), not argument.startswith("torch.")
        elif before in ("-X", "-W") and not in_program:
            shown = _keep(argument, _PYTHON_VALUE)
        elif argument.startswith("-"):
            shown = _mask_option(argument)
        elif _is_kept_option(before) and "=" not in argument:
            shown = _mask_value(argument)
        else:
            shown = _mask_override(argument)
        before = argument if argument.startswith("-") else ""
        yield shown


def _keep(argument: str, allowed: re.Pattern[str]) -> str:
    return argument if allowed.fullmatch(argument) and not looks_secret(argument) else MASK


def _is_kept_option(argument: str) -> bool:
    name = argument.lstrip("-").replace("_", "-")
    return (argument.startswith("--") and name in _OPTIONS) or argument in ("-cn", "-cp", "-cd")


def _mask_option(argument: str) -> str:
    """Return a known option, with its value if that looks harmless; others are masked."""
    if argument in ("-m", "--") or _SOURCE.fullmatch(argument) or _PYTHON_FLAGS.fullmatch(argument):
        return argument
    name, separator, value = argument.partition("=")
    if not _is_kept_option(name):
        return MASK
    return f"{name}{separator}{_mask_value(value)}" if separator else name


def _mask_override(argument: str) -> str:
    """Return an override of verl's configuration; anything else is masked."""
    match = _OVERRIDE.fullmatch(argument)
    if match is None or re.split(r"[./@]", match["key"])[0] not in _NAMESPACES or looks_secret(match["key"]):
        return MASK
    value = match["value"]
    if value is None:
        return argument if argument.startswith("~") else MASK
    head = argument[: len(argument) - len(value)]
    return f"{head}{MASK if is_secret_name(match['key']) and value else _mask_value(value)}"


def _mask_value(value: str) -> str:
    return MASK if looks_secret(value) else value


def looks_secret(text: str) -> bool:
    """Return whether text contains the shape or name of a secret, a login or a URL query."""
    return len(text) > MAX_VALUE or "\n" in text or mask_text(text) != text or ("?" in text and "=" in text)


def mask_text(text: str) -> str:
    """Return text with the values masked whose names or shapes are those of secrets. For log lines and messages.

    Example:
        "api_key=*** sent to https://***@host/path?***"
    """
    masked = _LOGIN.sub(f"{MASK}@", text)
    masked = _QUERY.sub(rf"\1{MASK}", masked)
    masked = _SCHEME.sub(rf"\1\2{MASK}", masked)
    masked = _NAMED.sub(_mask_named, masked)
    masked = _OPTION_VALUE.sub(_mask_named, masked)
    masked = _USER.sub(rf"\1\2{MASK}", masked)
    return _SHAPES.sub(MASK, masked)


def _mask_named(match: re.Match[str]) -> str:
    """Return a name and its value, which is masked if the name denotes a secret."""
    if match["value"].startswith(MASK) or not is_secret_name(match["name"].lstrip("-")):
        return match[0]
    return f"{match[0].removesuffix(match['value'])}{MASK}"


def mask_url(url: str) -> str:
    """Return a URL with login, query and fragment masked. A malformed URL is masked completely."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return MASK
    login, separator, host = parts.netloc.rpartition("@")
    place = f"{MASK}@{host}" if separator and login else host
    return urlunsplit((parts.scheme, place, parts.path, MASK if parts.query else "", MASK if parts.fragment else ""))
