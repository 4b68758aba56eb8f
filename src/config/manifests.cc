#include "config/manifests.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "base/strings.h"
#include "config/decode.h"
#include "config/files.h"
#include "config/http_route.h"

namespace penstock::config {

namespace {

constexpr size_t kMaxFiles = 1000;
constexpr size_t kMaxFileBytes = 4 << 20;
constexpr std::string_view kPoolGroup = "inference.networking.k8s.io";
constexpr std::string_view kLegacyGroup = "inference.networking.x-k8s.io";
constexpr std::string_view kGatewayGroup = "gateway.networking.k8s.io";
constexpr std::string_view kLlmdGroup = "llm-d.ai";

// One document while it is decoded.
struct Document {
  const ManifestSource& source;
  const Node& node;
  std::string group;
  std::string version;
  std::string kind;
  ObjectMeta meta;
  const Node* spec = nullptr;
  std::string path;  // "routes.yaml: HTTPRoute default/a"
};

void decode_label_map(const Node* node, const std::string& path, LabelMap& out, Errors& errors) {
  if (node == nullptr) return;
  if (!node->is_map()) {
    errors.add(path, fmt::format("expected object, got {}", Node::kind_name(node->kind)), node->line);
    return;
  }
  for (const auto& [key, value] : node->members) {
    if (value.kind != Node::Kind::kString) {
      errors.add(join_path(path, key),
                 fmt::format("expected string, got {} {}", Node::kind_name(value.kind), value.to_json()),
                 value.line);
      continue;
    }
    out.insert_or_assign(key, value.text);
  }
}

// RFC 1123 subdomain in lower case, as object names are.
bool is_object_name(std::string_view name) {
  if (name.empty() || name.size() > 253) return false;
  for (const std::string_view label : split(name, '.')) {
    if (label.empty() || label.front() == '-' || label.back() == '-') return false;
    for (const char c : label) {
      if ((c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-') return false;
    }
  }
  return true;
}

void decode_meta(const Node* node, Document& doc, Errors& errors) {
  const Node* labels = nullptr;
  const Node* annotations = nullptr;
  const Node* ignored = nullptr;
  const std::string path = doc.path + ": metadata";
  decode_object(node, path, errors, [&](Binder& b) {
    b.field("name", doc.meta.name, "", "");
    b.field("namespace", doc.meta.ns, "", "");
    b.node("labels", labels, "");
    b.node("annotations", annotations, "");
    for (const std::string_view name :
         {"generateName", "selfLink", "uid", "resourceVersion", "generation", "creationTimestamp",
          "deletionTimestamp", "deletionGracePeriodSeconds", "ownerReferences", "finalizers",
          "managedFields"}) {
      b.node(name, ignored, "");
    }
  });
  if (doc.meta.ns.empty()) doc.meta.ns = "default";
  if (!is_object_name(doc.meta.name)) {
    errors.add(path + ".name", fmt::format("\"{}\" is not an object name", doc.meta.name), doc.node.line);
  }
  decode_label_map(labels, path + ".labels", doc.meta.labels, errors);
  decode_label_map(annotations, path + ".annotations", doc.meta.annotations, errors);
}

void check_port(int64_t port, const std::string& path, int line, Errors& errors) {
  if (port < 1 || port > 65535) errors.add(path, fmt::format("{} is not in 1..65535", port), line);
}

// --- InferencePool ---

void check_failure_mode(const std::string& mode, EndpointPickerRef& ref, const std::string& path, int line,
                        Errors& errors) {
  if (mode != "FailOpen" && mode != "FailClose") {
    errors.add(path + ".failureMode", fmt::format("\"{}\" is neither FailOpen nor FailClose", mode), line);
  }
  ref.fail_open = mode == "FailOpen";
}

void decode_picker(const Node* node, const std::string& path, InferencePool& pool, Errors& errors) {
  if (node == nullptr) return;
  EndpointPickerRef ref;
  std::string mode = "FailClose";
  const Node* port = nullptr;
  decode_object(node, path, errors, [&](Binder& b) {
    b.field("group", ref.group, "", "");
    b.field("kind", ref.kind, "", "");
    b.field("name", ref.name, "", "");
    b.node("port", port, "");
    b.field("failureMode", mode, "", "");
  });
  if (ref.name.empty()) errors.add(path + ".name", "is required", node->line);
  if (port != nullptr) {
    int64_t number = 0;
    decode_object(port, path + ".port", errors, [&](Binder& b) { b.field("number", number, "", ""); });
    check_port(number, path + ".port.number", port->line, errors);
    ref.port = static_cast<uint16_t>(number);
  } else if (ref.kind == "Service") {
    errors.add(path, "port is required when kind is 'Service' or unspecified (defaults to 'Service')",
               node->line);
  }
  check_failure_mode(mode, ref, path, node->line, errors);
  pool.endpoint_picker = std::move(ref);
}

void check_pool(const InferencePool& pool, const Document& doc, Errors& errors) {
  if (pool.selector.empty() || pool.selector.size() > 64) {
    errors.add(doc.path + ": spec.selector",
               fmt::format("1 to 64 labels are required, got {}", pool.selector.size()), doc.node.line);
  }
}

InferencePool decode_pool_v1(const Document& doc, Errors& errors) {
  InferencePool pool;
  pool.meta = doc.meta;
  const std::string path = doc.path + ": spec";
  const Node* selector = nullptr;
  const Node* labels = nullptr;
  const Node* ports = nullptr;
  const Node* picker = nullptr;
  decode_object(doc.spec, path, errors, [&](Binder& b) {
    b.node("selector", selector, "");
    b.node("targetPorts", ports, "");
    b.field("appProtocol", pool.app_protocol, "", "");
    b.node("endpointPickerRef", picker, "");
  });
  decode_object(selector, path + ".selector", errors, [&](Binder& b) { b.node("matchLabels", labels, ""); });
  decode_label_map(labels, path + ".selector.matchLabels", pool.selector, errors);
  for_each_item(ports, path + ".targetPorts", errors, [&](const Node& item, const std::string& item_path) {
    int64_t number = 0;
    decode_object(&item, item_path, errors, [&](Binder& b) { b.field("number", number, "", ""); });
    check_port(number, item_path + ".number", item.line, errors);
    const auto port = static_cast<uint16_t>(number);
    if (std::find(pool.target_ports.begin(), pool.target_ports.end(), port) != pool.target_ports.end()) {
      errors.add(item_path, "port number must be unique", item.line);
    }
    pool.target_ports.push_back(port);
  });
  if (pool.target_ports.empty() || pool.target_ports.size() > 8) {
    errors.add(path + ".targetPorts",
               fmt::format("1 to 8 ports are required, got {}", pool.target_ports.size()), doc.node.line);
  }
  if (!pool.app_protocol.empty() && pool.app_protocol != "http" && pool.app_protocol != kH2c) {
    errors.add(path + ".appProtocol",
               fmt::format("\"{}\" is neither http nor kubernetes.io/h2c", pool.app_protocol), doc.node.line);
  }
  decode_picker(picker, path + ".endpointPickerRef", pool, errors);
  check_pool(pool, doc, errors);
  return pool;
}

InferencePool decode_pool_v1alpha2(const Document& doc, Errors& errors) {
  InferencePool pool;
  pool.meta = doc.meta;
  const std::string path = doc.path + ": spec";
  const Node* selector = nullptr;
  const Node* extension = nullptr;
  int64_t port = 0;
  decode_object(doc.spec, path, errors, [&](Binder& b) {
    b.node("selector", selector, "");
    b.field("targetPortNumber", port, "", "");
    b.node("extensionRef", extension, "");
  });
  decode_label_map(selector, path + ".selector", pool.selector, errors);
  check_port(port, path + ".targetPortNumber", doc.node.line, errors);
  pool.target_ports.push_back(static_cast<uint16_t>(port));
  if (extension != nullptr) {
    EndpointPickerRef ref;
    std::string mode = "FailClose";
    int64_t picker_port = 9002;
    decode_object(extension, path + ".extensionRef", errors, [&](Binder& b) {
      b.field("group", ref.group, "", "");
      b.field("kind", ref.kind, "", "");
      b.field("name", ref.name, "", "");
      b.field("portNumber", picker_port, "", "");
      b.field("failureMode", mode, "", "");
    });
    check_port(picker_port, path + ".extensionRef.portNumber", extension->line, errors);
    ref.port = static_cast<uint16_t>(picker_port);
    check_failure_mode(mode, ref, path + ".extensionRef", extension->line, errors);
    pool.endpoint_picker = std::move(ref);
  }
  check_pool(pool, doc, errors);
  return pool;
}

// --- InferenceObjective and InferenceModelRewrite ---

PoolRef decode_pool_ref(const Node* node, const Document& doc, Errors& errors) {
  PoolRef ref;
  const std::string path = doc.path + ": spec.poolRef";
  decode_object(node, path, errors, [&](Binder& b) {
    b.field("group", ref.group, "", "");
    b.field("kind", ref.kind, "", "");
    b.field("name", ref.name, "", "");
  });
  if (ref.name.empty()) {
    errors.add(path + ".name", "is required", node != nullptr ? node->line : doc.node.line);
  }
  return ref;
}

InferenceObjective decode_objective(const Document& doc, Errors& errors) {
  InferenceObjective objective;
  objective.meta = doc.meta;
  const Node* pool = nullptr;
  std::optional<int64_t> priority;
  decode_object(doc.spec, doc.path + ": spec", errors, [&](Binder& b) {
    b.field("priority", priority, "", "");
    b.node("poolRef", pool, "");
  });
  if (priority) {
    if (*priority < INT32_MIN || *priority > INT32_MAX) {
      errors.add(doc.path + ": spec.priority", fmt::format("{} is not a 32-bit number", *priority),
                 doc.node.line);
    } else {
      objective.priority = static_cast<int>(*priority);
    }
  }
  objective.pool = decode_pool_ref(pool, doc, errors);
  return objective;
}

void decode_rewrite_match(const Node& item, const std::string& path, InferenceModelRewrite::Rule& rule,
                          Errors& errors) {
  const Node* model = nullptr;
  decode_object(&item, path, errors, [&](Binder& b) { b.node("model", model, ""); });
  if (model == nullptr) return;
  std::string type = "Exact";
  std::string value;
  decode_object(model, path + ".model", errors, [&](Binder& b) {
    b.field("type", type, "", "");
    b.field("value", value, "", "");
  });
  if (type != "Exact") {
    errors.add(path + ".model.type", fmt::format("\"{}\" is not Exact", type), model->line);
  }
  if (value.empty()) errors.add(path + ".model.value", "must not be empty", model->line);
  rule.models.push_back(std::move(value));
}

void decode_rewrite_target(const Node& item, const std::string& path, InferenceModelRewrite::Rule& rule,
                           Errors& errors) {
  InferenceModelRewrite::Target target;
  std::optional<int64_t> weight;
  decode_object(&item, path, errors, [&](Binder& b) {
    b.field("weight", weight, "", "");
    b.field("modelRewrite", target.model, "", "");
  });
  if (target.model.empty()) errors.add(path + ".modelRewrite", "is required", item.line);
  if (weight) {
    if (*weight < 1 || *weight > 1000000) {
      errors.add(path + ".weight", fmt::format("{} is not in 1..1000000", *weight), item.line);
    }
    target.weight = static_cast<uint32_t>(*weight);
  }
  rule.targets.push_back(std::move(target));
}

InferenceModelRewrite decode_rewrite(const Document& doc, Errors& errors) {
  InferenceModelRewrite rewrite;
  rewrite.meta = doc.meta;
  const Node* pool = nullptr;
  const Node* rules = nullptr;
  const std::string path = doc.path + ": spec";
  decode_object(doc.spec, path, errors, [&](Binder& b) {
    b.node("poolRef", pool, "");
    b.node("rules", rules, "");
  });
  rewrite.pool = decode_pool_ref(pool, doc, errors);
  for_each_item(rules, path + ".rules", errors, [&](const Node& item, const std::string& item_path) {
    InferenceModelRewrite::Rule rule;
    const Node* matches = nullptr;
    const Node* targets = nullptr;
    decode_object(&item, item_path, errors, [&](Binder& b) {
      b.node("matches", matches, "");
      b.node("targets", targets, "");
    });
    for_each_item(matches, item_path + ".matches", errors, [&](const Node& match, const std::string& p) {
      decode_rewrite_match(match, p, rule, errors);
    });
    rule.generic = matches == nullptr || matches->items.empty();
    for_each_item(targets, item_path + ".targets", errors, [&](const Node& target, const std::string& p) {
      decode_rewrite_target(target, p, rule, errors);
    });
    if (rule.targets.empty()) errors.add(item_path + ".targets", "at least one is required", item.line);
    rewrite.rules.push_back(std::move(rule));
  });
  if (rewrite.rules.empty()) errors.add(path + ".rules", "is required", doc.node.line);
  return rewrite;
}

// --- Gateway ---

void decode_listener_tls(const Node* node, const std::string& path, const Document& doc,
                         Gateway::Listener& listener, Errors& errors) {
  if (node == nullptr) {
    if (listener.protocol == Gateway::Protocol::kHttps) {
      errors.add(path, "an HTTPS listener needs tls.certificateRefs", listener.line);
    }
    return;
  }
  std::string mode = "Terminate";
  const Node* refs = nullptr;
  decode_object(node, path, errors, [&](Binder& b) {
    b.field("mode", mode, "", "");
    b.node("certificateRefs", refs, "");
  });
  if (listener.protocol == Gateway::Protocol::kHttp) {
    errors.add(path, "belongs to HTTPS listeners only", node->line);
  }
  if (mode != "Terminate") {
    errors.add(path + ".mode", fmt::format("\"{}\" is not supported, only Terminate", mode), node->line);
  }
  for_each_item(refs, path + ".certificateRefs", errors, [&](const Node& item, const std::string& item_path) {
    std::string group;
    std::string kind = "Secret";
    std::string name;
    std::string ns = doc.meta.ns;
    decode_object(&item, item_path, errors, [&](Binder& b) {
      b.field("group", group, "", "");
      b.field("kind", kind, "", "");
      b.field("name", name, "", "");
      b.field("namespace", ns, "", "");
    });
    if (!group.empty() || kind != "Secret") {
      errors.add(item_path, fmt::format("\"{}/{}\" is not supported, only Secrets", group, kind), item.line);
    }
    if (ns != doc.meta.ns) {
      errors.add(item_path + ".namespace",
                 fmt::format("\"{}\": a Secret of another namespace needs a "
                             "ReferenceGrant, which stand-alone use has not",
                             ns),
                 item.line);
    }
    if (!is_object_name(name)) {
      errors.add(item_path + ".name", fmt::format("\"{}\" is not an object name", name), item.line);
    }
    if (!listener.cert_file.empty()) return;
    const std::string folder = resolve_path(doc.source.folder, "secrets/" + name);
    listener.cert_file = folder + "/tls.crt";
    listener.key_file = folder + "/tls.key";
  });
  if (listener.protocol == Gateway::Protocol::kHttps && listener.cert_file.empty()) {
    errors.add(path + ".certificateRefs", "at least one is required", node->line);
  }
}

void decode_allowed_routes(const Node* node, const std::string& path, Gateway::Listener& listener,
                           Errors& errors) {
  if (node == nullptr) return;
  const Node* namespaces = nullptr;
  const Node* kinds = nullptr;
  decode_object(node, path, errors, [&](Binder& b) {
    b.node("namespaces", namespaces, "");
    b.node("kinds", kinds, "");
  });
  std::string from = "Same";
  decode_object(namespaces, path + ".namespaces", errors, [&](Binder& b) { b.field("from", from, "", ""); });
  if (from == "All") {
    listener.routes_from = Gateway::RoutesFrom::kAll;
  } else if (from != "Same") {
    errors.add(path + ".namespaces.from", fmt::format("\"{}\" is not supported, only Same and All", from),
               namespaces->line);
  }
  for_each_item(kinds, path + ".kinds", errors, [&](const Node& item, const std::string& item_path) {
    std::string group(kGatewayGroup);
    std::string kind;
    decode_object(&item, item_path, errors, [&](Binder& b) {
      b.field("group", group, "", "");
      b.field("kind", kind, "", "");
    });
    if (group != kGatewayGroup || kind != "HTTPRoute") {
      errors.add(item_path, fmt::format("\"{}/{}\" is not supported, only HTTPRoute", group, kind),
                 item.line);
    }
  });
}

Gateway::Listener decode_listener(const Node& item, const std::string& path, const Document& doc,
                                  Errors& errors) {
  Gateway::Listener listener;
  listener.line = item.line;
  std::string protocol;
  int64_t port = 0;
  const Node* tls = nullptr;
  const Node* allowed = nullptr;
  decode_object(&item, path, errors, [&](Binder& b) {
    b.field("name", listener.name, "", "");
    b.field("hostname", listener.hostname, "", "");
    b.field("port", port, "", "");
    b.field("protocol", protocol, "", "");
    b.node("tls", tls, "");
    b.node("allowedRoutes", allowed, "");
  });
  if (!is_object_name(listener.name)) {
    errors.add(path + ".name", fmt::format("\"{}\" is not a section name", listener.name), item.line);
  }
  check_port(port, path + ".port", item.line, errors);
  listener.port = static_cast<uint16_t>(port);
  if (protocol == "HTTPS") {
    listener.protocol = Gateway::Protocol::kHttps;
  } else if (protocol != "HTTP") {
    errors.add(path + ".protocol", fmt::format("\"{}\" is not supported, only HTTP and HTTPS", protocol),
               item.line);
  }
  if (!listener.hostname.empty() && !is_route_hostname(listener.hostname)) {
    errors.add(path + ".hostname", fmt::format("\"{}\" is not a host name", listener.hostname), item.line);
  }
  decode_listener_tls(tls, path + ".tls", doc, listener, errors);
  decode_allowed_routes(allowed, path + ".allowedRoutes", listener, errors);
  return listener;
}

void check_listeners(const std::vector<Gateway::Listener>& listeners, const std::string& path,
                     const Document& doc, Errors& errors) {
  if (listeners.empty() || listeners.size() > 64) {
    errors.add(path, fmt::format("1 to 64 are required, got {}", listeners.size()), doc.node.line);
  }
  for (size_t i = 0; i < listeners.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Gateway::Listener& a = listeners[i];
      const Gateway::Listener& b = listeners[j];
      if (a.name == b.name) {
        errors.add(fmt::format("{}[{}].name", path, i), fmt::format("\"{}\" is given twice", a.name), a.line);
      }
      if (a.port != b.port) continue;
      if (a.protocol != b.protocol) {
        errors.add(fmt::format("{}[{}].protocol", path, i),
                   fmt::format("port {} already speaks the other protocol", a.port), a.line);
      } else if (a.hostname == b.hostname) {
        errors.add(fmt::format("{}[{}]", path, i),
                   fmt::format("port {} and hostname \"{}\" are given twice", a.port, a.hostname), a.line);
      }
    }
  }
}

Gateway decode_gateway(const Document& doc, std::vector<std::string>& warnings, Errors& errors) {
  Gateway gateway;
  gateway.meta = doc.meta;
  const Node* listeners = nullptr;
  const Node* addresses = nullptr;
  const Node* infrastructure = nullptr;
  const std::string path = doc.path + ": spec";
  decode_object(doc.spec, path, errors, [&](Binder& b) {
    b.field("gatewayClassName", gateway.class_name, "", "");
    b.node("listeners", listeners, "");
    b.node("addresses", addresses, "");
    b.node("infrastructure", infrastructure, "");
  });
  if (gateway.class_name.empty()) errors.add(path + ".gatewayClassName", "is required", doc.node.line);
  if (addresses != nullptr)
    warnings.push_back(path + ".addresses is ignored: listeners bind to every address");
  if (infrastructure != nullptr) warnings.push_back(path + ".infrastructure is ignored");
  for_each_item(listeners, path + ".listeners", errors, [&](const Node& item, const std::string& item_path) {
    gateway.listeners.push_back(decode_listener(item, item_path, doc, errors));
  });
  check_listeners(gateway.listeners, path + ".listeners", doc, errors);
  return gateway;
}

// --- one object of a cluster ---

template <typename Decode>
auto decode_cluster_object(const Node& object, std::string_view kind, Decode decode)
    -> Result<decltype(decode(std::declval<const Document&>(), std::declval<Errors&>()))> {
  static const ManifestSource kCluster{"cluster", "", ""};
  Errors errors(Binder::Unknown::kIgnored);
  Document doc{kCluster, object, "", "", std::string(kind), {}, nullptr, std::string(kind)};
  const Node* metadata = object.find("metadata");
  const Node* name = metadata != nullptr ? metadata->find("name") : nullptr;
  if (name != nullptr) doc.path += " " + name->text;
  decode_meta(metadata, doc, errors);
  doc.meta.source = kCluster.name;
  doc.spec = object.find("spec");
  if (doc.spec == nullptr) errors.add(doc.path + ": spec", "is required", 0);
  auto out = decode(doc, errors);
  if (!errors.empty()) return errors.joined();
  return out;
}

// --- the set ---

class Collector {
 public:
  Collector(Manifests& out, Errors& errors) : out_(out), errors_(errors) {}

  void add(const ManifestSource& source, const Node& node) {
    if (!node.is_map()) {
      errors_.add(source.name, fmt::format("expected object, got {}", Node::kind_name(node.kind)), node.line);
      return;
    }
    Document doc{source, node, "", "", "", {}, nullptr, source.name};
    if (!identify(doc)) return;
    if (doc.kind == "List" && doc.group.empty()) {
      for_each_item(node.find("items"), source.name + ": items", errors_,
                    [&](const Node& item, const std::string&) { add(source, item); });
      return;
    }
    if (!is_read(doc)) {
      out_.warnings.push_back(fmt::format("{}: {}/{} {} is not read (line {})", source.name, doc.group,
                                          doc.version, doc.kind, node.line));
      return;
    }
    const Node* metadata = node.find("metadata");
    const Node* name = metadata != nullptr ? metadata->find("name") : nullptr;
    doc.path = fmt::format("{}: {} {}", source.name, doc.kind, name != nullptr ? name->text : "");
    check_members(doc);
    decode_meta(metadata, doc, errors_);
    doc.meta.source = source.name;
    doc.meta.line = node.line;
    doc.meta.creation_order = next_++;
    doc.spec = node.find("spec");
    if (doc.spec == nullptr) errors_.add(doc.path + ": spec", "is required", node.line);
    if (!seen_.insert(fmt::format("{} {}", doc.kind, doc.meta.full_name())).second) {
      errors_.add(doc.path, "is defined twice", node.line);
    }
    dispatch(doc);
  }

 private:
  bool identify(Document& doc) {
    const auto text = [&](std::string_view key) {
      const Node* value = doc.node.find(key);
      return value != nullptr && value->kind == Node::Kind::kString ? value->text : std::string();
    };
    const std::string api_version = text("apiVersion");
    doc.kind = text("kind");
    if (api_version.empty() || doc.kind.empty()) {
      errors_.add(doc.path, "apiVersion and kind are required", doc.node.line);
      return false;
    }
    const size_t slash = api_version.find('/');
    doc.group = slash == std::string::npos ? "" : api_version.substr(0, slash);
    doc.version = slash == std::string::npos ? api_version : api_version.substr(slash + 1);
    return true;
  }
  static bool is_read(const Document& doc) {
    const auto is = [&](std::string_view group, std::string_view version, std::string_view kind) {
      return doc.group == group && doc.version == version && doc.kind == kind;
    };
    return is(kPoolGroup, "v1", "InferencePool") || is(kLegacyGroup, "v1alpha2", "InferencePool") ||
           is(kLlmdGroup, "v1alpha2", "InferenceObjective") ||
           is(kLegacyGroup, "v1alpha2", "InferenceObjective") ||
           is(kLlmdGroup, "v1alpha2", "InferenceModelRewrite") ||
           is(kLegacyGroup, "v1alpha2", "InferenceModelRewrite") || is(kGatewayGroup, "v1", "Gateway") ||
           is(kGatewayGroup, "v1beta1", "Gateway") || is(kGatewayGroup, "v1", "HTTPRoute") ||
           is(kGatewayGroup, "v1beta1", "HTTPRoute");
  }
  void check_members(const Document& doc) {
    static constexpr std::array<std::string_view, 5> kKnown{"apiVersion", "kind", "metadata", "spec",
                                                            "status"};
    for (const auto& [key, value] : doc.node.members) {
      if (std::find(kKnown.begin(), kKnown.end(), key) == kKnown.end()) {
        errors_.add(doc.path, fmt::format("unknown field \"{}\"", key), value.key_line);
      }
    }
  }
  void dispatch(const Document& doc) {
    if (doc.group == kLegacyGroup) {
      out_.warnings.push_back(
          fmt::format("DEPRECATION: {}: {}/{} is deprecated, use {}", doc.path, doc.group, doc.version,
                      doc.kind == "InferencePool" ? "inference.networking.k8s.io/v1" : "llm-d.ai/v1alpha2"));
    }
    if (doc.kind == "InferencePool") {
      out_.pools.push_back(doc.group == kPoolGroup ? decode_pool_v1(doc, errors_)
                                                   : decode_pool_v1alpha2(doc, errors_));
    } else if (doc.kind == "InferenceObjective") {
      out_.objectives.push_back(decode_objective(doc, errors_));
    } else if (doc.kind == "InferenceModelRewrite") {
      out_.rewrites.push_back(decode_rewrite(doc, errors_));
    } else if (doc.kind == "Gateway") {
      out_.gateways.push_back(decode_gateway(doc, out_.warnings, errors_));
    } else {
      HttpRoute route = decode_http_route(doc.spec, doc.path, doc.meta, errors_);
      out_.routes.push_back(std::move(route));
    }
  }

  Manifests& out_;
  Errors& errors_;
  uint64_t next_ = 1;
  std::set<std::string> seen_;
};

}  // namespace

bool InferencePool::selects(const LabelMap& labels) const {
  return std::all_of(selector.begin(), selector.end(), [&](const auto& wanted) {
    const auto found = labels.find(wanted.first);
    return found != labels.end() && found->second == wanted.second;
  });
}

const InferencePool* Manifests::find_pool(std::string_view ns, std::string_view name) const {
  for (const InferencePool& pool : pools) {
    if (pool.meta.ns == ns && pool.meta.name == name) return &pool;
  }
  return nullptr;
}

Result<InferencePool> decode_cluster_pool(const Node& object, bool v1alpha2) {
  return decode_cluster_object(object, "InferencePool", v1alpha2 ? decode_pool_v1alpha2 : decode_pool_v1);
}

Result<InferenceObjective> decode_cluster_objective(const Node& object) {
  return decode_cluster_object(object, "InferenceObjective", decode_objective);
}

Result<InferenceModelRewrite> decode_cluster_rewrite(const Node& object) {
  return decode_cluster_object(object, "InferenceModelRewrite", decode_rewrite);
}

Result<Manifests> decode_manifests(std::span<const ManifestSource> sources) {
  Manifests out;
  Errors errors;
  Collector collector(out, errors);
  for (const ManifestSource& source : sources) {
    Result<std::vector<Node>> documents =
        parse_documents(source.text, source.name, ParseLimits{.max_bytes = kMaxFileBytes});
    if (!documents) {
      errors.add(documents.error().message);
      continue;
    }
    for (const Node& document : *documents) collector.add(source, document);
  }
  if (!errors.empty()) return errors.joined();
  return out;
}

Result<Manifests> load_manifests(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<std::string> files;
  if (fs::is_directory(path, error)) {
    for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
      const std::string extension = it->path().extension().string();
      const bool wanted = extension == ".yaml" || extension == ".yml" || extension == ".json";
      if (wanted && !fs::is_directory(it->path(), error)) files.push_back(it->path().string());
    }
    if (error) return Error{ErrorCode::kIo, fmt::format("reading {}: {}", path, error.message())};
    std::sort(files.begin(), files.end());
  } else {
    files.push_back(path);
  }
  if (files.size() > kMaxFiles) {
    return invalid_config(
        fmt::format("{}: {} manifests, more than the {} allowed", path, files.size(), kMaxFiles));
  }
  std::vector<ManifestSource> sources;
  for (const std::string& file : files) {
    Result<std::string> text = read_file(file, kMaxFileBytes);
    if (!text) return std::move(text).error();
    sources.push_back({file, std::move(text).value(), folder_of(file)});
  }
  return decode_manifests(sources);
}

}  // namespace penstock::config
