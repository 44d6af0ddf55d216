# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Masks possible secrets in command lines, log lines and URLs.

Of a command line only what is plainly harmless is kept, everything else becomes ``***``. In free text, such as the last lines of a log, values
are masked whose names or shapes are those of secrets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit, urlunsplit

MASK: Final = "***"
MAX_ARGUMENTS: Final = 500
_PLAIN_VALUE: Final = re.compile(
    r"[+-]?[\d_.]{1,8}(?:e[+-]?\d{1,3})?|true|false|null|none|gae|grpo|gspo|dapo|rloo|remax|reinforce_plus_plus|vllm|sglang|hf|fsdp2?|megatron|veomni"
    r"|sync|async|bfloat16|float16|float32|auto|console",
    re.IGNORECASE,
)
"""Values of settings that are kept: numbers, and words that are no secret."""
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
_SETTING: Final = re.compile(r"(?P<key>[+~]{0,2}(?:--)?[A-Za-z_][\w./@-]*)=(?P<value>.*)", re.DOTALL)
_NAME: Final = re.compile(r"[\w./+~@-]{1,300}")
_SCRIPTS: Final = (".py", ".sh", "/torchrun", "/verl-otel")
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
    """Return a command line of which only what is plainly no secret is kept.

    The program, the module, scripts, names of settings, and values that are numbers or words of a short list.

    Args:
        arguments: Program and arguments, as of `sys.orig_argv`.

    Example:
        ["python", "-m", "verl.trainer.main_ppo", "trainer.nnodes=2", "trainer.project_name=***", "***"]
    """
    given = [str(argument) for argument in arguments[:MAX_ARGUMENTS]]
    befores = ["-m", *given]  # the program is kept like a module
    shown = [_mask_argument(before, argument) for before, argument in zip(befores, given, strict=False)]
    return [*shown, MASK] if len(arguments) > MAX_ARGUMENTS else shown


def _mask_argument(before: str, argument: str) -> str:
    setting = _SETTING.fullmatch(argument)
    if setting is not None:
        is_kept = _PLAIN_VALUE.fullmatch(setting["value"]) and not is_secret_name(setting["key"])
        shown = argument if is_kept else f"{setting['key']}={MASK}"
    else:
        is_kept = (
            argument in ("-m", "-c", "-u")
            or before == "-m"
            or (argument.endswith(_SCRIPTS) and (not before.startswith("-") or before == "-u"))
        )
        shown = argument if is_kept and _NAME.fullmatch(argument) else MASK
    return MASK if _SHAPES.search(shown.replace(MASK, "")) else shown


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
