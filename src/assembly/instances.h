#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "assembly/assembly.h"
#include "base/result.h"
#include "config/endpoint_picker_config.h"
#include "inference/plugin.h"

namespace penstock::assembly {

// The plugin instances of one assembly, by name, and the tables they are made from.
class Instances final : public PluginLookup {
 public:
  explicit Instances(const AssemblyOptions& options)
      : options_(options), scrape_interval_(options.scrape_interval) {}

  // What factories are told from now on.
  void set_scrape_interval(Duration interval) { scrape_interval_ = interval; }
  Duration scrape_interval() const { return scrape_interval_; }

  const PluginDescriptor* find_type(std::string_view type) const;
  // "plugin type 'x' is known to llm-d-router but not part of this build", or, for types nobody knows,
  // `unknown` with the type put in for {}, and the type that is spelt most like it.
  Error missing_type(std::string_view type, std::string_view unknown) const;

  // Makes an instance. `path`: of its parameters, for messages. REQUIRES: the type is in a table, the name
  // is not taken.
  Status create(const config::PluginSpec& spec, const std::string& path);

  Plugin* find(std::string_view name) const override;
  // As an interface; nullptr when there is no such instance or it is something else.
  template <typename T>
  T* find_as(std::string_view name) const {
    return dynamic_cast<T*>(find(name));
  }
  // In the order of the configuration, then of injection: the order that decides every tie.
  std::vector<const Plugin*> in_order() const;
  // REQUIRES: `names` are instances. What is not among them follows in order of creation.
  void set_order(const std::vector<std::string>& names);
  const PluginDescriptor& descriptor(const Plugin& plugin) const;
  std::vector<std::unique_ptr<Plugin>> release() { return std::move(plugins_); }

 private:
  const AssemblyOptions& options_;
  Duration scrape_interval_;
  std::vector<std::unique_ptr<Plugin>> plugins_;  // in order of creation
  std::map<std::string, Plugin*, std::less<>> by_name_;
  std::vector<std::string> order_;
};

}  // namespace penstock::assembly
