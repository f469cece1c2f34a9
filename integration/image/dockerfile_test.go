package image_test

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-mesh/fairlead/integration/image"
)

func digest(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

// The images that we ship: what they hold, whose that is, and how they start.
func TestShippedImages(t *testing.T) {
	const types = `application/vnd.oci.image.manifest.v1+json
application/vnd.oci.image.config.v1+json
application/vnd.oci.image.layer.v1.tar+gzip
`
	for target, want := range map[string]string{
		"fairlead": types + `drwxr-xr-x 0:0 0 etc/ ""
drwxr-xr-x 0:0 0 etc/ssl/ ""
drwxr-xr-x 0:0 0 etc/ssl/certs/ ""
-rw-r--r-- 0:0 0 etc/ssl/certs/ca-certificates.crt "/etc/ssl/certs/ca-certificates.crt"
drwxr-xr-x 0:0 0 usr/ ""
drwxr-xr-x 0:0 0 usr/local/ ""
drwxr-xr-x 0:0 0 usr/local/bin/ ""
-rwxr-xr-x 0:0 0 usr/local/bin/fairlead "../../bin/fairlead"
-rwxr-xr-x 0:0 0 usr/local/bin/fairlead-cni "../../bin/fairlead-cni"
drwxr-xr-x 0:0 0 usr/share/ ""
drwxr-xr-x 0:0 0 usr/share/doc/ ""
drwxr-xr-x 0:0 0 usr/share/doc/fairlead/ ""
-rw-r--r-- 0:0 0 usr/share/doc/fairlead/LICENSE "../../LICENSE"
{
  "Entrypoint": [
    "/usr/local/bin/fairlead"
  ],
  "Env": [
    "PATH=/usr/local/bin"
  ],
  "Labels": {
    "org.opencontainers.image.description": "Connects a node's pods to its ambient-mesh proxy",
    "org.opencontainers.image.licenses": "Apache-2.0",
    "org.opencontainers.image.source": "https://github.com/fairlead-mesh/fairlead",
    "org.opencontainers.image.title": "fairlead",
    "org.opencontainers.image.version": "v9"
  },
  "WorkingDir": "/"
}
`,
		"nodeproxy": types + `drwxr-xr-x 0:0 0 usr/ ""
drwxr-xr-x 0:0 0 usr/local/ ""
drwxr-xr-x 0:0 0 usr/local/bin/ ""
-rwxr-xr-x 0:0 0 usr/local/bin/nodeproxy "../../bin/nodeproxy"
drwxr-xr-x 0:0 0 usr/share/ ""
drwxr-xr-x 0:0 0 usr/share/doc/ ""
drwxr-xr-x 0:0 0 usr/share/doc/fairlead/ ""
-rw-r--r-- 0:0 0 usr/share/doc/fairlead/LICENSE "../../LICENSE"
{
  "Entrypoint": [
    "/usr/local/bin/nodeproxy"
  ],
  "Env": [
    "PATH=/usr/local/bin"
  ],
  "Labels": {
    "org.opencontainers.image.description": "Fairlead's reference node proxy, to run in ztunnel's place",
    "org.opencontainers.image.licenses": "Apache-2.0",
    "org.opencontainers.image.source": "https://github.com/fairlead-mesh/fairlead",
    "org.opencontainers.image.title": "nodeproxy",
    "org.opencontainers.image.version": "v9"
  },
  "WorkingDir": "/"
}
`,
	} {
		i, err := image.Read("../../Dockerfile", target, map[string]string{"VERSION": "v9"})
		if err != nil {
			t.Fatal(err)
		}
		i.Name = target + ":v9"
		for name, file := range i.Files { // each holds where it comes from: nothing has to be built
			file.Source = program(t, file.Source)
			i.Files[name] = file
		}
		_, got, _ := strings.Cut(show(t, write(t, i)), "ref.name:v9]\n")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", target, diff)
		}
	}
}

const build = "FROM golang AS build\nWORKDIR /src\nRUN make\nCMD anything\n"

func TestRead(t *testing.T) {
	dir := t.TempDir()
	dockerfile := filepath.Join(dir, "Dockerfile")
	text := "# syntax\n" + build + `
from scratch as other
VOLUME /not/ours
FROM scratch AS app
ARG A=1
ARG B="two"
ARG C
LABEL a=$A b="${A} \"x\"" \
      # between
      c.d-e=$C$B
ENV F=g H="i j"
COPY --from=build --chmod=0640 /src/x/y /z
COPY --from=build --chmod=0755 /srcs/x /etc/x
ENTRYPOINT ["/z", "run"]
`
	if err := writeFile(dockerfile, text); err != nil {
		t.Fatal(err)
	}
	got, err := image.Read(dockerfile, "app", map[string]string{"A": "9", "C": "c"})
	if err != nil {
		t.Fatal(err)
	}
	want := image.Image{
		Entrypoint: []string{"/z", "run"}, Env: []string{"F=g", "H=i j"}, Labels: map[string]string{"a": "9", "b": `9 "x"`, "c.d-e": "ctwo"},
		Files: map[string]image.File{"/z": {Source: filepath.Join(dir, "x/y"), Mode: 0o640}, "/etc/x": {Source: "/srcs/x", Mode: 0o755}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What another builder would make more of than we do is refused, with its line.
func TestRefusedDockerfiles(t *testing.T) {
	dockerfile := filepath.Join(t.TempDir(), "Dockerfile")
	cases := map[string]string{
		"RUN true":             "line 6: RUN: not understood here",
		"USER 1000":            "line 6: USER: not understood here",
		"WORKDIR /x":           "line 6: WORKDIR: not understood here",
		"COPY /src/a /a":       "line 6: COPY: not of the form COPY --from=stage --chmod=0755",
		"LABEL a=$V":           "line 6: LABEL: the variable V is not set",
		"LABEL a b":            "line 6: LABEL: not of the form name=value",
		`LABEL a="b`:           "line 6: LABEL: not of the form name=value",
		`LABEL a="\q"`:         "line 6: LABEL: not of the form name=value",
		"ARG V":                "line 6: ARG: V has no value",
		"ENTRYPOINT /bin/a":    "line 6: ENTRYPOINT: not a JSON array of strings",
		"ENV A=1":              `the stage "app" has no ENTRYPOINT`,
		"FROM scratch":         "line 6: FROM: not of the form FROM image AS name",
		"FROM debian AS app":   "line 6: FROM: the stage app is from debian",
		"FROM scratch AS last": `the stage "app" has no ENTRYPOINT`,

		"COPY --from=build --chmod=0755 /src/a /b/":             "line 6: COPY: not of the form",
		"COPY --from=build --chmod=0755 a /b":                   "line 6: COPY: not of the form",
		"COPY --from=build --chmod=u+x /src/a /b":               "line 6: COPY: not of the form",
		"COPY --from=other --chmod=0755 /src/a /b":              "line 6: COPY: no stage other with a WORKDIR",
		"COPY --from=build --chmod=0755 --chown=1 /src/a /b":    "line 6: COPY: not of the form",
		"COPY --from=build --chmod=0755 /src/a /src/b /usr/bin": "line 6: COPY: not of the form",
	}
	for _, line := range slices.Sorted(maps.Keys(cases)) {
		if err := writeFile(dockerfile, build+"FROM scratch AS app\n"+line+"\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := image.Read(dockerfile, "app", nil); err == nil || !strings.Contains(err.Error(), cases[line]) {
			t.Errorf("%s: got %v, want it to say %q", line, err, cases[line])
		}
	}
	for target, want := range map[string]string{"build": "the stage build is from golang", "none": `has no stage "none"`} {
		if _, err := image.Read(dockerfile, target, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want it to say %q", target, err, want)
		}
	}
	if _, err := image.Read("/nowhere", "app", nil); err == nil {
		t.Error("a Dockerfile that is not there was read")
	}
}
