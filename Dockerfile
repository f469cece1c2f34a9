# The agent with the plugin that it installs, and the reference node proxy. Any builder
# makes them:
#
#     docker build --build-arg VERSION=... -t fairlead .
#     docker build --build-arg VERSION=... -t nodeproxy --target nodeproxy .
#
# `make image` makes the same images from this file without one: it reads the stages that
# are FROM scratch, takes from this checkout what stands in /src, and anything else from
# the machine. So both say here what they hold, and an instruction that make does not know
# is refused (integration/image).

FROM golang:1.26.8 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=unknown
RUN make build VERSION="$VERSION"

FROM scratch AS nodeproxy
ARG VERSION=unknown
LABEL org.opencontainers.image.title="nodeproxy" \
      org.opencontainers.image.description="Fairlead's reference node proxy, to run in ztunnel's place" \
      org.opencontainers.image.source="https://github.com/fairlead-mesh/fairlead" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION"
COPY --from=build --chmod=0755 /src/bin/nodeproxy /usr/local/bin/nodeproxy
COPY --from=build --chmod=0644 /src/LICENSE /usr/share/doc/fairlead/LICENSE
ENV PATH=/usr/local/bin
ENTRYPOINT ["/usr/local/bin/nodeproxy"]

FROM scratch AS fairlead
ARG VERSION=unknown
LABEL org.opencontainers.image.title="fairlead" \
      org.opencontainers.image.description="Connects a node's pods to its ambient-mesh proxy" \
      org.opencontainers.image.source="https://github.com/fairlead-mesh/fairlead" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION"
# The agent installs the plugin that lies beside it.
COPY --from=build --chmod=0755 /src/bin/fairlead /usr/local/bin/fairlead
COPY --from=build --chmod=0755 /src/bin/fairlead-cni /usr/local/bin/fairlead-cni
# For an API server whose certificate a public authority has signed. Debian's, which the
# golang image is made of, in its own place.
COPY --from=build --chmod=0644 /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build --chmod=0644 /src/LICENSE /usr/share/doc/fairlead/LICENSE
ENV PATH=/usr/local/bin
ENTRYPOINT ["/usr/local/bin/fairlead"]
