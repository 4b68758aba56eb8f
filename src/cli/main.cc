#include <cstdio>

int main() {
  std::puts("penstock 0.1.0");
  return 0;
}
