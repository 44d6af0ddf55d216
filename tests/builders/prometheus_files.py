# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Fifty ``prometheus.yml`` files, made from what public repositories do: places of the key, indentation, quotes, comments, flow style, line ends."""

import itertools

TOP = (
    "# my global config\nglobal:\n  scrape_interval:     15s # Default is every 1 minute.\n  evaluation_interval: 15s\n"
)
LABELS = "global:\n  scrape_interval: 15s\n  external_labels:\n    cluster: 'größe'\n    replica: \"{{ .Name }}\"\n"
ALERTS = (
    "\n# Alertmanager configuration\nalerting:\n  alertmanagers:\n    - static_configs:\n        - targets:\n"
    '          # - alertmanager:9093\n\nrule_files:\n  # - "first_rules.yml"\n'
)
REMOTE = 'remote_write:\n- url: "https://example.org/api/v1/push"\n  basic_auth: {username: u, password_file: /etc/p}\n'
PLAIN = "- job_name: prometheus\n  static_configs:\n  - targets: ['localhost:9090']\n"
QUOTED = "- job_name: 'node'\n  scrape_interval: 5s\n  static_configs:\n    - targets: ['a:9100', \"b:9100\"]\n      labels: {env: 'prod'}\n"
RELABELED = (
    "- job_name: blackbox\n  metrics_path: /probe\n  params:\n    module: [http_2xx]  # a 200\n  static_configs:\n    - targets:\n"
    "      - example.org:80 # plain\n      - example.org:8443\n  relabel_configs:\n    - source_labels: [__address__]\n"
    "      regex: '([^:]+):\\d+'\n      target_label: host\n      replacement: '${1}'\n"
)
LITERAL = "- job_name: text\n  relabel_configs:\n  - action: drop\n    regex: |\n      - job_name: not one\n      scrape_configs:\n    source_labels: [x]\n"
RAY = "- job_name: 'ray'\n  file_sd_configs:\n  - files:\n    - '/tmp/ray/prom_metrics_service_discovery.json'\n"
KUBERNETES = (
    "- job_name: pods\n  kubernetes_sd_configs:\n  - {role: pod, namespaces: {names: [default]}}\n"
    "  bearer_token_file: /var/run/secrets/token\n  tls_config: &tls {insecure_skip_verify: true}\n"
    "- job_name: nodes\n  tls_config: *tls\n  scheme: https\n"
)
SECOND = PLAIN.replace("prometheus", "second")
JOBS = (PLAIN, QUOTED, RELABELED, LITERAL, RAY, KUBERNETES)
HEADS = ("", "# A scrape configuration.\n# Here it is Prometheus itself.\n")
COMMENTS = ("", " # what is scraped")
FIRST = ("", "# The job name is a label.\n", "\n")


def indent(text, width):
    """Return a text with more indentation, empty lines left empty."""
    return "".join(" " * width + line if line.strip() else line for line in text.splitlines(keepends=True))


def make_all():
    """Return the files by name."""
    files = {}
    around = ((TOP + ALERTS, ""), (LABELS, REMOTE), ("", TOP + REMOTE))
    for number, (jobs, width) in enumerate(itertools.product(JOBS, (0, 2, 4))):
        before, after = around[number % 3]
        key = f"{HEADS[number % 2]}scrape_configs:{COMMENTS[number // 2 % 2]}\n"
        first = indent(FIRST[number % 3], width)
        files[f"jobs-{number}"] = before + key + first + indent(jobs + (SECOND if number % 2 else ""), width) + after
    plain = TOP + "scrape_configs:\n" + indent(PLAIN, 2)
    for name in ("jobs-0", "jobs-4", "jobs-8", "jobs-10", "jobs-17"):
        files[f"windows-{name}"] = files[name].replace("\n", "\r\n")
        files[f"no-line-end-{name}"] = files[name].rstrip("\n")
        files[f"mark-{name}"] = "\ufeff" + files[name]
    files |= {
        "empty": "",
        "comments-only": "# nothing yet\n",
        "comments-without-line-end": "# nothing yet",
        "no-jobs": TOP,
        "no-jobs-no-line-end": TOP.rstrip("\n") + "\n  scrape_timeout: 9s",
        "no-jobs-windows": TOP.replace("\n", "\r\n"),
        "key-only": TOP + "scrape_configs:",
        "key-with-comments": "scrape_configs: # none\n  # - job_name: a\n" + TOP,
        "document-start": "---\n" + plain,
        "flow-empty": TOP + "scrape_configs: []\n",
        "flow-jobs": TOP + "scrape_configs: [{job_name: a}, {job_name: b}] # two\n",
        "flow-lines": "scrape_configs: [\n  {job_name: a},\n  # b\n  {job_name: b},\n]\n" + REMOTE,
        "json": '{"global": {"scrape_interval": "15s"}, "scrape_configs": [{"job_name": "a"}]}\n',
        "quoted-key": TOP + '"scrape_configs":\n' + PLAIN,
        "our-name": TOP + "scrape_configs:\n  - job_name: verl-otel\n",
        "tabs-in-comments": TOP + "scrape_configs: # \there\n" + indent(PLAIN, 2),
        "indented-top": indent(plain, 2),
    }
    return files
