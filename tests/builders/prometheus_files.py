# SPDX-FileCopyrightText: The verl-otel authors
# SPDX-License-Identifier: Apache-2.0
"""Fifty ``prometheus.yml`` files: places of the key, indentation, quotes, comments, brackets, line ends, and the forms of `SEEN`.

The text is our own; only the forms are those of the public files.
"""

import itertools

SEEN = {
    "anchors": ("prometheus/prometheus issue 1884", "no key of one's own is allowed, so anchors are in the first job, aliases in later ones"),
    "ansible": ("prometheus-community/ansible roles/prometheus/templates/prometheus.yml.j2", "comment of Ansible, empty lines for absent parts"),
    "blanks-at-ends": ("jaegertracing/jaeger docker-compose/monitor/prometheus.yml", "lines of blanks, blanks before line ends, no last line end"),
    "brackets-on-lines": ("prometheus/prometheus documentation/examples/prometheus-kubernetes.yml", "lists in brackets on several lines"),
    "comments-between": ("1218448175/SuperBizAgent prometheus.yml", "comments in another script around each job, an absent part as a comment"),
    "comments-left": (
        "ministryofjustice/staff-infrastructure-monitoring-app-reachability config/prometheus.yml.tpl",
        "comments left of the jobs that they are about",
    ),
    "deep-lists": ("vegasbrianc/prometheus prometheus/prometheus.yml", "another indentation at each level, empty lines inside of a job"),
    "empty-last-value": ("14LaveN/TeamTasks prometheus.yml", "the last key has no value and no line end"),
    "files-only": ("VictoriaMetrics/VictoriaMetrics app/vmagent/README.md", "`scrape_config_files` without `scrape_configs`"),
    "helm": ("prometheus-community/helm-charts charts/prometheus/templates/cm.yaml", "storage and files before the jobs, `alerting` after them"),
    "jobs-as-comments": ("stefanprodan/dockprom prometheus/prometheus.yml", "whole jobs as comments in the first column after the last job"),
    "operator": ("prometheus-operator/prometheus-operator pkg/prometheus/testdata/ConsulScrapeConfig.golden", "`storage` after the jobs, variables"),
    "sorted": ("grafana/mimir development/mimir-microservices-mode/generated/prometheus.yaml", "sorted keys, text quoted, no last line end"),
    "wide": ("prometheus/prometheus config/testdata/conf.good.yml", "values in columns, two empty lines, names in another script"),
    "windows-no-line-end": ("07Pedro/m321-obelix-webshop-mvk prometheus.yml", "CR LF, and none at the end"),
    "ray": (
        "ray-project/ray python/ray/dashboard/modules/metrics/export/prometheus/prometheus.yml",
        "comment and items in the first column",
    ),
}  # fmt: skip
"""Where a form was seen, by the name of the file that has it, and what it is."""

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


SELF = "static_configs: [{targets: ['a:1']}]"
FORMS = {
    "anchors": (
        "scrape_configs:\n  - &first\n    job_name: a\n    metrics_path: /probe\n    relabel_configs: &relabel # for all\n"
        "      - {target_label: x, replacement: y}\n\n  - <<: *first\n    job_name: b\n  - job_name: c\n    relabel_configs: *relabel\n"
    ),
    "ansible": "#\n# Ansible managed\n#\n\nglobal:\n  scrape_interval: 15s\n\n\n\n\nscrape_configs:\n  - job_name: a\n    metrics_path: /m\n  \n",
    "blanks-at-ends": (
        "global:\n  \n  # fast \n  scrape_interval:     1s # one \n\nscrape_configs:  \n  - job_name: a \n    static_configs:\n    - targets: [ 'a:1' ]"
    ),
    "brackets-on-lines": (
        '# Jobs:\n#\n# one for nodes\n\nscrape_configs:\n  - job_name: "a"\n\n    relabel_configs:\n      - source_labels:\n          [\n'
        "            __address__,\n            __scheme__,\n          ]\n        regex: (.+);(.+)\n        target_label: x\n"
    ),
    "comments-between": (
        f'# rule_files:\n#   - "a.yml"\n\n# 目标\nscrape_configs:\n  # ===== 内部 =====\n  # 一\n\n  # 二\n  - job_name: a\n    {SELF}\n\n  # 三 (端口)\n'
        f"  - job_name: b\n    {SELF}\n"
    ),
    "comments-left": f"scrape_configs:\n# own\n  - job_name: a\n    {SELF}\n\n  \n\n# The second\n# of two:\n  - job_name: b\n    {SELF}",
    "deep-lists": (
        "global:\n  external_labels:\n      monitor: 'mine'\nscrape_configs:\n  - job_name: 'a'\n\n    # often\n    scrape_interval: 5s\n\n"
        "    static_configs:\n         - targets: ['a:1','b:2']\n"
    ),
    "empty-last-value": (
        "global:\n    scrape_interval: 15s\nscrape_configs:\n  - job_name: 'a'\n    static_configs:\n      - targets: ['a:1',\n"
        "                  'b:2']\n\n  - job_name: 'b'\n    static_configs:"
    ),
    "files-only": "global:\n  scrape_interval: 1m\nscrape_config_files:\n  - '/etc/prometheus/scrape_configs/*.yml'\n",
    "helm": (
        "global:\n  scrape_interval: 1m\nstorage:\n  tsdb:\n    out_of_order_time_window: 0s\nscrape_config_files:\n- /etc/more.yml\nrule_files:\n"
        "- /etc/rules\nscrape_configs:\n- job_name: prometheus\n  static_configs:\n  - targets:\n    - localhost:9090\nalerting:\n"
        "  alertmanagers:\n  - kubernetes_sd_configs:\n      - role: pod\n"
    ),
    "jobs-as-comments": f"scrape_configs:\n  - job_name: a\n    {SELF}\n\n#  - job_name: 'b'\n#    {SELF}\n\n#  - job_name: 'c'\n",
    "operator": (
        "global:\n  external_labels:\n    replica: $(POD_NAME)\nscrape_configs:\n- job_name: scrape/default/a\n  relabel_configs:\n"
        '  - source_labels:\n    - job\n    regex: "1"\n    separator: ;\n    target_label: x\nstorage:\n  tsdb:\n    retention:\n      time: 24h\n'
    ),
    "ray": TOP + "\nscrape_configs:\n# Each node.\n" + RAY,
    "sorted": (
        'global:\n  scrape_interval: "5s"\nrule_files:\n  - "/etc/a.yaml"\nscrape_configs:\n  - job_name: "a"\n    relabel_configs:\n'
        '      - regex: "(.+?)(-\\\\d+)?"\n        target_label: "pod"'
    ),
    "wide": (
        "global:\n  scrape_interval:     15s\n\n  external_labels:\n    monitor: mine\n    foo:     bar\n\nscrape_configs:\n- job_name: a\n\n  honor_labels: true\n"
        "  relabel_configs:\n  - source_labels: [job, x]\n    regex:         (.*)some-[regex]\n    target_label:  job\n    # the default\n\n\n- job_name: 測試\n"
    ),
}
"""The forms of `SEEN` that no other file has."""


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
    files |= {
        "windows-no-line-end": files["jobs-10"].rstrip("\n").replace("\n", "\r\n"),
        "mark": "\ufeff" + files["jobs-8"],
    }
    files |= {
        "empty": "",
        "comments-without-line-end": "# nothing yet",
        "no-jobs": TOP,
        "no-jobs-no-line-end": TOP.rstrip("\n") + "\n  scrape_timeout: 9s",
        "no-jobs-windows": TOP.replace("\n", "\r\n"),
        "key-only": TOP + "scrape_configs:",
        "key-with-comments": "scrape_configs: # none\n  # - job_name: a\n" + TOP,
        "document-start-quoted-key": "---\n" + plain.replace("scrape_configs", '"scrape_configs"'),
        "flow-empty": TOP + "scrape_configs: []\n",
        "flow-jobs": TOP + "scrape_configs: [{job_name: a}, {job_name: b}] # two\n",
        "flow-lines": "scrape_configs: [\n  {job_name: a},\n  # b\n  {job_name: b},\n]\n" + REMOTE,
        "json": '{"global": {"scrape_interval": "15s"}, "scrape_configs": [{"job_name": "a"}]}\n',
        "our-name": TOP + "scrape_configs:\n  - job_name: verl-otel\n",
        "tabs-in-comments": TOP + "scrape_configs: # \there\n" + indent(PLAIN, 2),
        "indented-top": indent(plain, 2),
    }
    return files | FORMS
