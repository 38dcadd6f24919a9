# The Homebrew formula: the release workflow fills in version and sums (see .github/workflows/release.yml), for a tap:
#
#     brew install OWNER/octet/octet
class Octet < Formula
  desc "Runs large language models on your own machine, as fast as its memory allows"
  homepage "@REPOSITORY@"
  version "@VERSION@"
  license "Apache-2.0"

  on_macos do
    on_arm do
      url "@REPOSITORY@/releases/download/v@VERSION@/octet-aarch64-apple-darwin.tar.gz"
      sha256 "@SUM_aarch64-apple-darwin@"
    end
    on_intel do
      url "@REPOSITORY@/releases/download/v@VERSION@/octet-x86_64-apple-darwin.tar.gz"
      sha256 "@SUM_x86_64-apple-darwin@"
    end
  end
  on_linux do
    on_arm do
      url "@REPOSITORY@/releases/download/v@VERSION@/octet-aarch64-unknown-linux-gnu.tar.gz"
      sha256 "@SUM_aarch64-unknown-linux-gnu@"
    end
    on_intel do
      url "@REPOSITORY@/releases/download/v@VERSION@/octet-x86_64-unknown-linux-gnu.tar.gz"
      sha256 "@SUM_x86_64-unknown-linux-gnu@"
    end
  end

  def install
    bin.install "octet"
    generate_completions_from_executable(bin/"octet", "completions")
  end

  service do
    run [opt_bin/"octet", "serve"]
    keep_alive crashed: true
  end

  test do
    assert_match "octet #{version}", shell_output("#{bin}/octet --version")
  end
end
