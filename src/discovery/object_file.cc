#include "discovery/object_file.h"

#include <fmt/format.h>

#include "base/hash.h"
#include "base/strings.h"
#include "config/files.h"
#include "config/objects_file.h"
#include "telemetry/log.h"

namespace penstock::discovery {

ObjectFile::ObjectFile(Options options, std::function<void()> changed)
    : options_(std::move(options)),
      changed_(std::move(changed)),
      watch_({options_.path, options_.poll_interval, options_.settle}, [this] {
        (void)reload();  // says itself what is wrong
      }) {}

Status ObjectFile::load() {
  Result<bool> fresh = read();
  return fresh.ok() ? Status{} : Status{std::move(fresh).error()};
}

Status ObjectFile::reload() {
  Result<bool> fresh = read();
  if (!fresh.ok()) return std::move(fresh).error();
  if (*fresh) changed_();
  return {};
}

Result<bool> ObjectFile::read() {
  const std::lock_guard lock(mutex_);
  const auto fail = [&](Error error) {
    if (loaded_ && error.message != last_error_) {
      telemetry::log_error("a file of objects can't be used, the last good ones stay",
                           {{"path", options_.path}, {"error", error.message}});
    }
    last_error_ = error.message;
    return error;
  };
  Result<std::string> text = config::read_file(options_.path, config::kMaxObjectsFileBytes);
  if (!text.ok()) return fail(std::move(text).error());
  const uint64_t hash = hash_of(*text);
  if (loaded_ && hash == content_hash_) {
    last_error_.clear();
    return false;
  }
  Result<std::vector<config::ApiObject>> decoded = config::decode_objects(*text, options_.path);
  if (!decoded.ok()) return fail(std::move(decoded).error());
  if (trim(*text).empty()) {
    return fail(invalid_config(options_.path + ": the file is empty; a list without items says that there "
                                               "are none"));
  }
  auto objects = std::make_shared<NotifiedObjects>();
  for (config::ApiObject& object : *decoded) {
    if (ObjectKind{object.group, object.version, object.kind} != options_.kind) continue;
    objects->push_back(std::make_shared<const NotifiedObject>(
        NotifiedObject{std::move(object.ns), std::move(object.name), std::move(object.node)}));
  }
  sort_objects(*objects);
  loaded_ = true;
  content_hash_ = hash;
  last_error_.clear();
  objects_ = std::move(objects);
  telemetry::log_info(
      "file of objects loaded",
      {{"path", options_.path}, {"kind", options_.kind.text()}, {"objects", objects_->size()}});
  return true;
}

std::shared_ptr<const NotifiedObjects> ObjectFile::objects() const {
  const std::lock_guard lock(mutex_);
  return objects_;
}

std::string ObjectFile::state_json() const {
  const std::lock_guard lock(mutex_);
  const std::string_view state = !loaded_ ? "unknown" : last_error_.empty() ? "followed" : "stale";
  std::string out = fmt::format(R"({{"path":{},"state":"{}","objects":{})", json_quote(options_.path), state,
                                objects_->size());
  if (!last_error_.empty()) out += fmt::format(R"(,"error":{})", json_quote(last_error_));
  return out + "}";
}

}  // namespace penstock::discovery
