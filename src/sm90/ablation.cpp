// SPDX-License-Identifier: Apache-2.0
#include "sm90/ablation.h"

namespace strobe::sm90 {
namespace {

void take_every_ingredient(forward::Config& config) {
  config.consumer_warpgroups = 2;
  config.block_n = 128;
  config.stages = 2;
  config.q_stages = 2;
  config.ping_pong = config.two_stage = true;
}

AblationVariant without(std::string name, bool forward::Config::* ingredient) {
  return {"without " + std::move(name), [ingredient](forward::Config& config) {
            take_every_ingredient(config);
            config.*ingredient = false;
          }};
}

}  // namespace

std::vector<AblationVariant> ablation_variants() {
  using forward::Config;
  return {{"all, 128x128 tiles", take_every_ingredient},
          without("two_stage", &Config::two_stage),
          without("ping_pong", &Config::ping_pong)};
}

}  // namespace strobe::sm90
