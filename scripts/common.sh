# Sourced by scripts/quickstart and scripts/test: finds or installs what the build needs, and chooses where build
# products go. It installs nothing outside the cache folder unless it runs as root.
#
# Needed: cargo, a C compiler, cmake and nasm (libjpeg-turbo is built from source with its SIMD code).

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/feedstock
tools=$cache/tools
export PATH="$HOME/.cargo/bin:$tools/bin:$tools/usr/bin:$PATH"

say() { printf '\n== %s\n' "$*" >&2; }
die() { printf 'feedstock: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# Installs packages as root with Debian's or Ubuntu's package manager. Waits up to 5 minutes for another run of it.
apt_install() {
    [ "$(id -u)" = 0 ] && have apt-get || return 1
    say "installing $*"
    local install=(apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "$@")
    "${install[@]}" >/dev/null 2>&1 && return 0
    apt-get -o DPkg::Lock::Timeout=300 update -qq >/dev/null && "${install[@]}" >/dev/null
}

# Unpacks Debian's package into the cache folder, without root. For programs that need nothing but libc.
apt_unpack() {
    have apt-get && have dpkg-deb || return 1
    say "unpacking $1 into $tools"
    local state=$tools/apt
    mkdir -p "$state/lists/partial" "$state/archives/partial" "$tools"
    local options=(-qq -o "Dir::State=$state" -o "Dir::State::lists=$state/lists" -o "Dir::Cache=$state"
        -o "Dir::State::status=/var/lib/dpkg/status" -o "APT::Sandbox::User=")
    (cd "$state" && apt-get "${options[@]}" update && apt-get "${options[@]}" download "$1" &&
        dpkg-deb -x "$1"_*.deb "$tools")
}

# Installs the PyPI package $1 in a private virtual environment.
pip_install() {
    have python3 || return 1
    say "installing $1 into $tools"
    python3 -m venv "$tools" && "$tools/bin/pip" install -q "$1"
}

# The PyPI package named nasm is an assembler for the 6502, so nasm comes only from the system's packages.
have cargo || die "cargo is missing: install Rust 1.94 or later (https://rustup.rs), then run this again"
have cc || apt_install build-essential || die "a C compiler is missing: install gcc or clang, then run this again"
have cmake || apt_install cmake || pip_install cmake || die "cmake is missing: install it, then run this again"
have nasm || apt_install nasm || apt_unpack nasm || die "nasm is missing: install it, then run this again"

cd "$root"
if [ -z "${CARGO_TARGET_DIR:-}" ] && [ ! -d target ]; then
    export CARGO_TARGET_DIR=$cache/target
fi

# The model checks of ingest are a separate workspace; ingest/model/Cargo.toml states why.
model=(--locked --manifest-path ingest/model/Cargo.toml --target-dir "${CARGO_TARGET_DIR:-target}/model")

venv=$cache/venv
wheels=$cache/wheels

# Sets up the virtual environment of tests and examples, with this checkout's package in it.
set_up_python() {
    have python3 || die "python3 is missing: install Python 3.10 or later, then run this again"
    local wanted=$root/python/requirements-test.txt
    if ! cmp -s "$wanted" "$venv/installed.txt"; then
        say "installing the Python packages of tests and examples (torch, Ray and others: about 6 GB, some minutes)"
        python3 -m venv "$venv"
        "$venv/bin/pip" install -q uv
        "$venv/bin/uv" pip install -q --python "$venv/bin/python" -r "$wanted"
        compile_python "$venv/lib"
        cp "$wanted" "$venv/installed.txt"
    fi
    build_wheel "$venv/bin/maturin"
    "$venv/bin/uv" pip install -q --python "$venv/bin/python" --no-deps --reinstall "$wheels"/feedstock-*.whl
    compile_python "$venv"/lib/python*/site-packages/feedstock
}

# Compiles the Python files of a folder. Where PYTHONDONTWRITEBYTECODE is set, each process would compile what it
# imports: for torch and Ray Train that takes as long again as running it.
compile_python() {
    # A package may have files for other versions of Python, which do not compile.
    "$venv/bin/python" -m compileall -q -j 0 "$@" >/dev/null || true
}

# Builds the Python package of this checkout with the maturin $1 into $wheels.
build_wheel() {
    say "building the Python package"
    # The tests' wheel uses the libraries that the tests of Rust have compiled; see python/Cargo.toml. Cargo uses
    # profile.test for tests only, so the wheel gets those settings as profile.dev.
    local checked how
    checked=$(mktemp --suffix=.toml)
    sed -n '/^\[profile\.test\.package\]$/,/^$/{ s/test/dev/; p }' .cargo/config.toml >"$checked"
    how=(--profile dev --features shared-build,test-hooks --config "$checked")
    [ "${FEEDSTOCK_RELEASE:-}" = 1 ] && how=(--release) # as users get it
    rm -rf "$wheels"
    local status=0
    (cd "$root/python" && "$1" build --locked -q "${how[@]}" --out "$wheels") || status=$?
    rm -f "$checked"
    return "$status"
}

# Checks the formatting of all Rust files.
check_formatting() {
    say "formatting"
    cargo fmt --all --check
    cargo fmt --manifest-path ingest/model/Cargo.toml --check
}

# Runs all lints: of libraries and programs, then of tests, examples and benches.
lint() {
    say "lints of libraries and programs"
    cargo clippy --locked --workspace --all-features -- -D warnings
    say "lints of tests, examples and benches"
    # A test may unwrap, print and panic: that is how it fails.
    cargo clippy --locked --workspace --all-features --all-targets -- -D warnings \
        -A clippy::unwrap_used -A clippy::expect_used -A clippy::panic -A clippy::print_stdout \
        -A clippy::cast_possible_truncation -A clippy::undocumented_unsafe_blocks -A missing_docs -A unreachable_pub
    cargo clippy "${model[@]}" --all-targets -- -D warnings
}
