#include "assembly/notifications.h"

#include <algorithm>
#include <utility>

namespace penstock::assembly {

std::vector<ObjectSource> object_sources(const std::vector<std::unique_ptr<Plugin>>& plugins) {
  std::vector<ObjectSource> out;
  for (const std::unique_ptr<Plugin>& plugin : plugins) {
    const auto* source = dynamic_cast<const discovery::ObjectSourcePlugin*>(plugin.get());
    if (source != nullptr) out.push_back({source, {}});
  }
  if (out.empty()) return out;
  for (const std::unique_ptr<Plugin>& plugin : plugins) {
    const auto* extractor = dynamic_cast<const ObjectExtractor*>(plugin.get());
    if (extractor == nullptr) continue;
    for (ObjectSource& source : out) {
      if (source.source->params().kind == extractor->object_kind()) source.extractors.push_back(extractor);
    }
  }
  return out;
}

discovery::ObjectQuery object_query(const ObjectSource& source, std::string_view pool_namespace) {
  const discovery::ObjectSourceParams& params = source.source->params();
  discovery::ObjectQuery out;
  out.kind = params.kind;
  out.ns = source.source->namespace_for(pool_namespace);
  out.max_objects = static_cast<size_t>(params.max_objects);
  out.max_bytes = static_cast<size_t>(params.max_bytes);
  for (const ObjectExtractor* extractor : source.extractors) {
    const std::vector<std::string> fields = extractor->object_fields();
    if (fields.empty()) {
      out.fields.clear();
      return out;
    }
    out.fields.insert(out.fields.end(), fields.begin(), fields.end());
  }
  if (out.fields.empty()) out.fields.emplace_back("metadata.name");  // nobody reads more
  std::sort(out.fields.begin(), out.fields.end());
  out.fields.erase(std::unique(out.fields.begin(), out.fields.end()), out.fields.end());
  return out;
}

ObjectFeeds::ObjectFeeds(std::string pool_namespace, std::function<void()> changed)
    : pool_namespace_(std::move(pool_namespace)), changed_(std::move(changed)) {}

ObjectFeeds::~ObjectFeeds() {
  close();
}

bool ObjectFeeds::is_of(const Open& open, const ObjectSource& source) const {
  const discovery::ObjectSourceParams& params = source.source->params();
  if (!params.path.empty()) return open.params.path == params.path && open.params.kind == params.kind;
  return open.query && *open.query == object_query(source, pool_namespace_);
}

const ObjectFeeds::Open* ObjectFeeds::find(const ObjectSource& source) const {
  const auto found =
      std::find_if(open_.begin(), open_.end(), [&](const Open& open) { return is_of(open, source); });
  return found == open_.end() ? nullptr : &*found;
}

Status ObjectFeeds::open(const std::vector<std::unique_ptr<Plugin>>& plugins) {
  std::vector<Open> opened;
  for (const ObjectSource& source : object_sources(plugins)) {
    {
      const std::lock_guard lock(mutex_);
      if (find(source) != nullptr) continue;
    }
    Open one;
    one.params = source.source->params();
    if (!one.params.path.empty()) {
      discovery::ObjectFile::Options options;
      options.path = one.params.path;
      options.kind = one.params.kind;
      auto file = std::make_unique<discovery::ObjectFile>(options, changed_);
      if (Status status = file->load(); !status.ok()) return status.error().wrap(source.source->name());
      if (started_) {
        if (Status status = file->start(); !status.ok()) return status;
      }
      one.file = file.get();
      one.feed = std::move(file);
    } else if (cluster_ != nullptr) {
      one.query = object_query(source, pool_namespace_);
      one.feed = cluster_->follow(*one.query, changed_);
    } else {
      continue;
    }
    opened.push_back(std::move(one));
  }
  const std::lock_guard lock(mutex_);
  std::move(opened.begin(), opened.end(), std::back_inserter(open_));
  return {};
}

void ObjectFeeds::keep_only(const std::vector<std::unique_ptr<Plugin>>& plugins) {
  const std::vector<ObjectSource> sources = object_sources(plugins);
  std::vector<Open> ended;  // without the lock that telling takes
  const std::lock_guard lock(mutex_);
  const auto unwanted = std::partition(open_.begin(), open_.end(), [&](const Open& open) {
    return std::any_of(sources.begin(), sources.end(),
                       [&](const ObjectSource& source) { return is_of(open, source); });
  });
  std::move(unwanted, open_.end(), std::back_inserter(ended));
  open_.erase(unwanted, open_.end());
}

Status ObjectFeeds::start() {
  started_ = true;
  const std::lock_guard lock(mutex_);
  for (const Open& open : open_) {
    if (open.file == nullptr) continue;
    if (Status status = open.file->start(); !status.ok()) return status;
  }
  return {};
}

Status ObjectFeeds::reload() {
  std::vector<discovery::ObjectFile*> files;
  {
    const std::lock_guard lock(mutex_);
    for (const Open& open : open_) {
      if (open.file != nullptr) files.push_back(open.file);
    }
  }
  Status first;
  for (discovery::ObjectFile* file : files) {
    if (Status status = file->reload(); !status.ok() && first.ok()) first = status;
  }
  return first;
}

void ObjectFeeds::close() {
  std::vector<Open> ended;
  const std::lock_guard lock(mutex_);
  ended.swap(open_);
}

void ObjectFeeds::tell(const std::vector<std::unique_ptr<Plugin>>& plugins) const {
  const std::lock_guard lock(mutex_);
  for (const ObjectSource& source : object_sources(plugins)) {
    const Open* open = find(source);
    const std::shared_ptr<const NotifiedObjects> all = open == nullptr ? nullptr : open->feed->objects();
    if (all == nullptr) continue;
    for (const ObjectExtractor* extractor : source.extractors) extractor->objects(*all);
  }
}

std::optional<std::string> ObjectFeeds::state_json(const discovery::ObjectSourcePlugin& source) const {
  const std::lock_guard lock(mutex_);
  for (const Open& open : open_) {
    if (open.params == source.params()) return open.feed->state_json();
  }
  return std::nullopt;
}

}  // namespace penstock::assembly
