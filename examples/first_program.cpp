// ./scripts/local-cluster --workers 4 -- first-program
#include <iostream>
#include <vector>

#include <sluice/sluice.hpp>

int main() try {
  sluice::Context context(sluice::ContextOptions::from_environment());
  sluice::Communicator job(context, sluice::JobOptions::from_environment());

  std::vector<float> gradients(1'000'000);  // zero but for one element
  gradients[42] = float(job.rank() + 1);
  const sluice::Work sum = job.all_reduce(std::span(gradients));
  sum.wait();
  std::cout << "the ranks' sum is " << gradients[42] << "; this one sent "
            << sum.statistics().bytes_sent << " bytes of " << 4 * gradients.size() << "\n";
} catch (const sluice::Error& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
