"""The long help of each command."""

from __future__ import annotations

from typing import Final

DESCRIPTION: Final = """\
DeepSeek-V4.1 on Kubernetes as vision-encode, prefill and decode pods behind one router.

  epd validate deploy.yaml           what the engine would refuse, before a pod exists
  epd explain deploy.yaml            the command line of every role, and where each flag comes from
  epd render deploy.yaml             the objects that the operator would make
  epd status demo -n llm --watch     look at one deployment until you press Ctrl-C
  epd status -A -o json              everything, for scripts
  epd crd | kubectl apply --server-side -f -
  epd run                            the operator itself; the chart does this for you
"""

RUN: Final = """\
Run the operator. It reads the service account inside a pod, and the kubeconfig anywhere else.

Two processes may run at once: one leads (a Lease decides), the other stands by and takes over within seconds.

environment:
  EPD_WATCH_NAMESPACE  namespaces to watch, separated by commas; empty: all
  EPD_ROUTER_IMAGE     default image of the router pods
  EPD_WORKER_IMAGE     default image of the Reference engine's pods
  EPD_RDMA_RESOURCE    what the cluster's device plugin calls an RDMA device (rdma/ib)
  EPD_ADVISORIES       file with engine builds known to misbehave; empty: none
  EPD_WORKERS          reconciliations at once (32)
  EPD_METRICS_PORT     Prometheus metrics (8080)
  EPD_PROBES_PORT      /healthz and /readyz (8090)
  EPD_LEASE_NAME       name of the Lease (epd-operator)
  POD_NAME             part of the lease identity; the host's name when unset
  POD_NAMESPACE        namespace of the Lease (epd-system)
"""

STATUS: Final = """\
Show what the operator last wrote into status, and the pods behind it.

exit status: 0 every shown deployment is Ready, 1 one is not, 2 the cluster or the deployment was not found
"""

COMPLETION: Final = """\
Print the script that teaches a shell the commands, options and values of epd.

  bash  epd completion bash >~/.local/share/bash-completion/completions/epd
  zsh   epd completion zsh >"${fpath[1]}/_epd"
  fish  epd completion fish >~/.config/fish/completions/epd.fish

Shells started afterwards know it. bash needs its package bash-completion, or: source <(epd completion bash)
"""

VALIDATE: Final = """\
Say what would be refused, all of it at once: by the schema, by the operator, and by the engine's own checks on the
platform that it is meant for. No cluster and no GPU is needed.

objects, in YAML or JSON; other kinds are passed over:
  epd validate deploy.yaml                        one file
  epd validate clusters/                          every *.yaml, *.yml and *.json below a folder
  kustomize build prod | epd validate -           the output of another program
  kubectl get dsv41 demo -o yaml | epd validate - what runs now
  epd validate --platform cuda-sm100 deploy.yaml  would it run on other GPUs?
  epd validate -o sarif clusters/ > epd.sarif     for a code host to show beside the lines of a change

one SGLang command line, behind --; flags alone, or all that a recipe shows, quoted or not:
  epd validate --platform cuda-sm90 --role prefill -- --tp-size 4 --chunked-prefill-size 8192
  epd validate -- 'SGLANG_X=1 python3 -m sglang.launch_server --model-path M --tp 4'
  epd validate --plugin epd --role encode -- --model-path M    with the plugin that has an encode tier

many SGLang command lines, a JSON object a line (with --strict, a row with a warning is not accepted):
  epd validate --cases cases.jsonl    rows {id, platform, argv, env, config?} in, {id, accepted, findings} out

Where the engine itself takes what the operator refuses, a command line gets a warning and an object an error.

exit status: 0 accepted (with --strict: and no warning), 1 refused, 2 something could not be read or used
"""

EXPLAIN: Final = """\
Show for each role the final command line and environment, where each part comes from, and the values that the engine
resolves them to; and of a pool of windows how many it holds, and what share of returning turns will find theirs. Works
offline.

  epd explain deploy.yaml
  epd explain -o json deploy.yaml
  epd explain --turns-per-second 25 deploy.yaml   the pool at this rate

exit status: 0 explained, 1 refused (the findings are on standard error), 2 could not be read
"""

RENDER: Final = """\
Print every object that the operator would make, in the order in which it applies them, on a cluster that has none of
them yet. Works offline. The uid in ownerReferences is a placeholder, so these are for reading and comparing.

  epd render deploy.yaml
  diff <(git show main:deploy.yaml | epd render -) <(epd render deploy.yaml)

environment:
  EPD_ROUTER_IMAGE, EPD_WORKER_IMAGE  as the installed operator has them

exit status: 0 rendered, 1 refused (the findings are on standard error), 2 could not be read
"""
