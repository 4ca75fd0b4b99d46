#!/usr/bin/env bash
# Build the control plane that `make kubernetes-test` starts: kube-apiserver, kube-controller-manager and kube-scheduler from Debian's
# source package, kept in a folder of the package's version. No kubelet: the test's nodes are fake. Needs root, apt and 10 to 20 minutes.
# usage: deploy/build_kubernetes.sh CACHE_FOLDER
set -euo pipefail
CACHE=$(realpath -m "${1:?usage: deploy/build_kubernetes.sh CACHE_FOLDER}")
WORK="$CACHE/build"
mkdir -p "$WORK/parts" "$WORK/lists/partial"

# The source lists are private to the build, so that the machine's own stay as they are.
# A Debian 12 that was upgraded, or installed by an older installer, has the older format only.
APT="${APT_FOLDER:-/etc/apt}"
if [ -r "$APT/sources.list.d/debian.sources" ]; then
    sed 's/^Types: deb$/Types: deb-src/' "$APT/sources.list.d/debian.sources" > "$WORK/parts/source.sources"
elif [ -r "$APT/sources.list" ]; then
    sed -n 's/^deb /deb-src /p' "$APT/sources.list" > "$WORK/parts/source.list"
else
    echo "neither $APT/sources.list.d/debian.sources nor $APT/sources.list is there: where does this machine's apt get Debian?" >&2
    exit 1
fi
SOURCES=(-o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$WORK/parts" -o "Dir::State::Lists=$WORK/lists")
apt-get -qq "${SOURCES[@]}" update
VERSION=$(apt-cache "${SOURCES[@]}" showsrc kubernetes | awk '/^Version:/ {print $2; exit}')
TARGET="$CACHE/$VERSION"
if [ -x "$TARGET/kube-apiserver" ]; then
    echo "already built: $TARGET"
    exit 0
fi

apt-get -qq update
DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends \
    dpkg-dev golang-1.19-go etcd-server rsync jq golang-github-modern-go-reflect2-dev
rm -rf "$WORK/src"
(cd "$WORK" && apt-get -qq "${SOURCES[@]}" source --download-only kubernetes && dpkg-source --no-check -x kubernetes_*.dsc src)

# With Go 1.18 and later the vendored reflect2 lets the API server die with SIGSEGV after minutes; Debian's own is newer.
VENDORED="$WORK/src/vendor/github.com/modern-go/reflect2"
rm -f "$VENDORED"/*.go "$VENDORED"/*.s
cp /usr/share/gocode/src/github.com/modern-go/reflect2/*.go "$VENDORED/"
cp /usr/share/gocode/src/github.com/modern-go/reflect2/*.s "$VENDORED/"

cd "$WORK/src"
export GOPATH="$PWD/.go" PATH="/usr/lib/go-1.19/bin:$PATH" CGO_ENABLED=0 GOPROXY=off GOFLAGS=-mod=vendor
export KUBE_GIT_VERSION=v1.20.2 KUBE_GIT_COMMIT=debian KUBE_GIT_TREE_STATE=clean KUBE_GIT_MAJOR=1 KUBE_GIT_MINOR=20
mkdir -p .go/src/k8s.io
ln -sfn ../../.. .go/src/k8s.io/kubernetes
make WHAT="cmd/kube-apiserver cmd/kube-controller-manager cmd/kube-scheduler"
mkdir -p "$TARGET.part"
cp _output/local/bin/linux/amd64/kube-{apiserver,controller-manager,scheduler} "$TARGET.part/"
mv "$TARGET.part" "$TARGET"
rm -rf "$WORK"
echo "built: $TARGET"
