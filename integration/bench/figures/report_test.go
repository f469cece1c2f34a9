package figures

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"testing"
)

func TestFigure(t *testing.T) {
	for _, tt := range []struct {
		value float64
		unit  string
		want  string
	}{
		{0.0234, "ms", "0.023 ms"}, {1.234, "ms", "1.23 ms"}, {12.34, "ms", "12.3 ms"}, {123.4, "ms", "123 ms"},
		{1000, "ms", "1000 ms"}, {5, "ms", "5 ms"}, {0.3, "% of a core", "0.300 % of a core"}, {1014, "fds", "1014 fds"},
	} {
		if got := figure(tt.value, tt.unit); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.value, got, tt.want)
		}
	}
}

func TestJudge(t *testing.T) {
	for _, tt := range []struct {
		value  float64
		budget *float64
		want   string
	}{{4.9, AtMost(5), "met"}, {5, AtMost(5), "met"}, {5.1, AtMost(5), "missed"}, {1, nil, "none"}} {
		m := Measure{Value: tt.value, Budget: tt.budget, Others: []Other{{Value: 3 * tt.value}}}
		m.judge()
		got := "none"
		if m.Met != nil {
			got = map[bool]string{true: "met", false: "missed"}[*m.Met]
		}
		if got != tt.want {
			t.Errorf("%v: %s, want %s", tt.value, got, tt.want)
		}
		if ratio := m.Others[0].Ratio; ratio < 2.999 || ratio > 3.001 {
			t.Errorf("%v: ratio %v, want 3", tt.value, ratio)
		}
	}
	none := Measure{Others: []Other{{Value: 3}}}
	if none.judge(); none.Others[0].Ratio != 0 {
		t.Errorf("the ratio to nothing is %v", none.Others[0].Ratio)
	}
}

func TestWrite(t *testing.T) {
	report := &Report{
		Kernel: "6.1.0", CPUs: 2, Load: 3.5, LoadAfter: 4, Noisy: true,
	}
	report.Add("add", []Measure{
		{What: "apply", Value: 1.2, Unit: "ms", Budget: AtMost(2), Others: []Other{{Name: "iptables", Value: 12}}, Note: "by netlink"},
		{What: "repair", Value: 4000, Unit: "ms", Budget: AtMost(10)},
		{What: "files", Value: 100, Unit: "fds", Note: "by netlink"},
	}, errors.New("no proxy"))
	want := `Linux 6.1.0, 2 CPUs, load average 3.50 before, 4.00 after: NOISY, other work ran on this machine; the figures are a rehearsal

WHAT       MEASURED  BUDGET           COMPARED WITH, IN THIS RUN
apply [1]  1.20 ms   ≤ 2 ms   met     iptables: 12 ms (10 × ours)
repair     4000 ms   ≤ 10 ms  MISSED  
files [1]  100 fds   -                

[1] by netlink
NOT MEASURED: add: no proxy
1 missed
`
	var got bytes.Buffer
	if err := report.Write(&got); err != nil || got.String() != want {
		t.Errorf("%v, got\n%s\nwant\n%s", err, got.String(), want)
	}
	report.Noisy, report.Failures = false, nil
	got.Reset()
	if err := report.Write(&got); err != nil || bytes.Contains(got.Bytes(), []byte("NOISY")) || bytes.Contains(got.Bytes(), []byte("NOT MEASURED")) {
		t.Errorf("%v, a quiet run says\n%s", err, got.String())
	}
}

// What one program writes the other reads.
func TestFiguresAreJSON(t *testing.T) {
	var f, again Figures
	f.Add("cluster-start", []Measure{{What: "a", Value: 1.5, Unit: "ms", Budget: AtMost(1), Others: []Other{{Name: "b", Value: 3}}}}, os.ErrDeadlineExceeded)
	text, err := json.Marshal(f)
	if err == nil {
		err = json.Unmarshal(text, &again)
	}
	if m := again.Measures; err != nil || len(m) != 1 || m[0].Row != "cluster-start" || *m[0].Met || m[0].Others[0].Ratio != 2 || len(again.Failures) != 1 {
		t.Errorf("%s became %+v, %v", text, again, err)
	}
}
