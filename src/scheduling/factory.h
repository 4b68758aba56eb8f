#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config/params.h"
#include "inference/plugin.h"

namespace penstock::scheduling {

// Logs that a type without parameters was given some: the reference accepts them silently.
void warn_ignored_parameters(const PluginFactoryContext& context, std::string_view type);

// How a plugin class becomes a line of the registry. The class has either
//  * `struct Params` and `static void bind(config::Binder&, Params&)`, and a constructor taking Params;
//  * or neither: it takes no parameters (any are accepted, and logged), default constructor;
//  * and, where its making needs more than parameters, `static Result<std::unique_ptr<Plugin>>
//    create(Params, const PluginFactoryContext&)`, which then is used instead of the constructor; or
//    `create(const PluginFactoryContext&)`, which decodes them itself.
template <typename P>
concept HasParams = requires(config::Binder& b, typename P::Params& params) { P::bind(b, params); };
template <typename P>
concept HasCreate = requires(const PluginFactoryContext& context) {
  { P::create(context) } -> std::same_as<Result<std::unique_ptr<Plugin>>>;
};

template <typename P>
concept HasCreateFromParams = requires(typename P::Params params, const PluginFactoryContext& context) {
  { P::create(std::move(params), context) } -> std::same_as<Result<std::unique_ptr<Plugin>>>;
};

template <typename P>
Result<std::unique_ptr<Plugin>> create_plugin(const PluginFactoryContext& context) {
  if constexpr (HasCreate<P>) {
    return P::create(context);
  } else if constexpr (HasParams<P>) {
    typename P::Params params;
    Status status = config::decode_params(context.parameters, context.path,
                                          [&](config::Binder& b) { P::bind(b, params); });
    if (!status.ok()) return std::move(status).error();
    if constexpr (HasCreateFromParams<P>) {
      return P::create(std::move(params), context);
    } else {
      return std::unique_ptr<Plugin>(std::make_unique<P>(std::move(params)));
    }
  } else {
    if (context.parameters != nullptr && !context.parameters->is_null())
      warn_ignored_parameters(context, P::kType);
    return std::unique_ptr<Plugin>(std::make_unique<P>());
  }
}

template <typename P>
std::vector<config::ParamDoc> describe_plugin() {
  return config::describe_params([](config::Binder& b) {
    typename P::Params params;
    P::bind(b, params);
  });
}

template <typename P>
PluginDescriptor line(std::string_view type, std::string_view summary, Stability stability = Stability::kBeta,
                      std::string_view replaced_by = {}) {
  PluginDescriptor out{type, stability, summary, &create_plugin<P>, nullptr, replaced_by};
  if constexpr (HasParams<P>) out.describe = &describe_plugin<P>;
  return out;
}

}  // namespace penstock::scheduling
