package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// actAsCluster puts a program in clusterbench's place.
func actAsCluster(t *testing.T, bin, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(bin, "clusterbench"), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
}

// measuresAll is a script that has measured each row that it is asked for.
const measuresAll = `echo progress >&2; printf '{"measures": ['; comma=
for row in $(echo "$2" | tr , ' '); do
	printf '%s{"row": "%s", "what": "what %s is", "value": 2, "unit": "ms"}' "$comma" "$row" "$row"; comma=,
done
echo '], "failures": []}'`

// The other program is asked for the rows that are chosen, and for nothing if none is;
// whatever becomes of it, each of them stands in the report.
func TestClusterRows(t *testing.T) {
	for name, tt := range map[string]struct{ script, rows, want string }{
		"measured":      {measuresAll, "memory", "what cluster-memory is: 2"},
		"all":           {measuresAll, "^cluster-", "what cluster-start is: 2, what cluster-deployment is: 2, what cluster-memory is: 2"},
		"not measured":  {`echo '{"measures": [], "failures": [{"row": "cluster-start", "error": "no agent"}]}'`, "-start$", "cluster-start failed: no agent"},
		"half of it":    {`echo '{"measures": [{"row": "cluster-start", "what": "a", "value": 1}]}'; exit 3`, "-start$|deployment", "a: 1, cluster-deployment failed: exit status 3"},
		"it fails":      {"exit 3", "memory|deployment", "cluster-deployment failed: exit status 3, cluster-memory failed: exit status 3"},
		"it is garbage": {"echo {", "-start$", "cluster-start failed: cannot read"},
		"no such thing": {"", "-start$", "cluster-start failed: make bench-cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			bin := brokenBinaries(t)
			if tt.script != "" {
				actAsCluster(t, bin, tt.script)
			}
			report, err := Run(t.Context(), Options{Bin: bin, Rows: regexp.MustCompile(tt.rows), Sizes: tiny()})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, m := range report.Measures {
				got = append(got, fmt.Sprintf("%s: %g", m.What, m.Value))
			}
			for _, f := range report.Failures {
				got = append(got, f.Row+" failed: "+f.Error)
			}
			want := strings.Split(tt.want, ", ")
			if len(got) != len(want) {
				t.Fatalf("got %q, want %q", got, want)
			}
			for i := range got {
				row, rest, _ := strings.Cut(want[i], ": ")
				if !strings.HasPrefix(got[i], row+": ") || !strings.Contains(got[i], rest) {
					t.Errorf("got %q, want %q", got[i], want[i])
				}
			}
		})
	}
}

func TestNoClusterIsStarted(t *testing.T) {
	bin := brokenBinaries(t)
	actAsCluster(t, bin, "touch "+filepath.Join(bin, "started"))
	b := bencher{Options: Options{Bin: bin, Rows: regexp.MustCompile("^verify$")}, report: newReport()}
	b.cluster(t.Context())
	if _, err := os.Stat(filepath.Join(bin, "started")); !os.IsNotExist(err) || len(b.report.Failures) > 0 {
		t.Errorf("it was started: %v, %v", err, b.report.Failures)
	}
}
