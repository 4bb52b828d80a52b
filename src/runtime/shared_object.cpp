// SPDX-License-Identifier: Apache-2.0
#include "runtime/shared_object.h"

#include <dlfcn.h>

namespace strobe::runtime {

SharedObject::Symbol SharedObject::find(const char* name) {
  void* address = dlsym(handle_, name);
  if (address == nullptr && missing_.empty()) missing_ = name;
  return Symbol(address);
}

}  // namespace strobe::runtime
