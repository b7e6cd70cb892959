# The agent's image, for arm64 and amd64. Build with Docker, Podman or buildah:
#
#   docker build --tag cpubind:0.1.0 .
#
# BASE_IMAGE is any image with glibc, libstdc++, sh, mount and grep, and with Python 3.11 or newer as python3, with its
# venv module. Nothing that was not locked with its hashes is installed, and everything from wheels, so that no stage
# needs a compiler. image/runtime.py says what of all this comes into the image, and why.
ARG BASE_IMAGE=python:3.11.14-slim-bookworm

FROM ${BASE_IMAGE} AS build
USER 0:0
# An index to install from in place of PyPI. It must have the same files: the locks say what they hash to.
ARG PIP_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python3 -m venv /opt/cpubind && python3 -m venv /opt/build
WORKDIR /src

# Dependencies are a layer of their own, which a change of the code does not rebuild.
COPY requirements.lock requirements-build.lock ./
RUN /opt/cpubind/bin/pip install --no-compile --only-binary :all: --require-hashes --requirement requirements.lock \
 && /opt/build/bin/pip install --no-compile --only-binary :all: --require-hashes --requirement requirements-build.lock

COPY . .
RUN /opt/build/bin/pip wheel --no-index --no-build-isolation --no-deps --wheel-dir /opt/build/wheels . \
 && /opt/cpubind/bin/pip install --no-index --no-compile --no-deps /opt/build/wheels/*.whl

# Of the kubernetes client's 72 MB the agent uses one API class: its asynchronous twin and the other classes, which are
# imported when first used, can go. Should a release of it or of kopf need them after all, the imports below fail the
# build. All else is compiled here, once: in a container with a read-only root file system every start would do it again.
# Of the client's 850 models a handful is used: those, the imports compile.
RUN cd /opt/cpubind/lib/python3*/site-packages \
 && rm -rf kubernetes/aio \
 && find kubernetes/client/api -name '*_api.py' ! -name custom_objects_api.py -delete \
 && /opt/cpubind/bin/pip uninstall --yes --quiet setuptools pip \
 && /opt/cpubind/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash -x 'kubernetes/client/models/' .

# What of all this the agent needs at run time, tried in there.
RUN python3 image/runtime.py /runtime /opt/cpubind \
 && chroot /runtime /opt/cpubind/bin/python -c \
      'import grpc, kopf, ssl; from kubernetes import client; client.CustomObjectsApi(client.ApiClient())' \
 && chroot /runtime /opt/cpubind/bin/cpubind --version

FROM scratch
ARG BASE_IMAGE
ARG VERSION=0.1.0
ARG REVISION
LABEL org.opencontainers.image.title="cpubind" \
      org.opencontainers.image.description="Node agent that decides, applies and keeps CPU placement for Ascend NPU inference" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.vendor="The cpubind authors" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"
COPY --from=build /runtime/ /
ENV PATH=/opt/cpubind/bin:/usr/bin:/bin \
    LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1
# Root: it moves threads of other users' processes and writes /proc/irq. Which rights it has, the pod says.
USER 0:0
ENTRYPOINT ["cpubind"]
CMD ["run"]
