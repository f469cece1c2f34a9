package bench

import (
	"bytes"
	"testing"
	"time"
)

func TestPercentile(t *testing.T) {
	hundred := make(sample, 100)
	for i := range hundred {
		hundred[(i*37)%100] = time.Duration(i + 1)
	}
	for _, tt := range []struct {
		s    sample
		p    float64
		want time.Duration
	}{
		{hundred, 50, 50}, {hundred, 99, 99}, {hundred, 100, 100}, {hundred, 0, 1}, {hundred, 99.5, 100},
		{sample{7}, 50, 7}, {sample{7}, 99, 7}, {sample{1, 2, 9}, 50, 2}, {nil, 50, 0},
	} {
		if got := tt.s.percentile(tt.p); got != tt.want {
			t.Errorf("percentile %v of %d values: %d, want %d", tt.p, len(tt.s), got, tt.want)
		}
	}
	if got := (sample{3 * time.Millisecond, time.Millisecond, 1500 * time.Microsecond}).median(); got != 1.5 {
		t.Errorf("median %v, want 1.5", got)
	}
}

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
	}{{4.9, atMost(5), "met"}, {5, atMost(5), "met"}, {5.1, atMost(5), "missed"}, {1, nil, "none"}} {
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
		Measures: []Measure{
			{What: "apply", Value: 1.2, Unit: "ms", Budget: atMost(2), Others: []Other{{Name: "iptables", Value: 12}}, Note: "by netlink"},
			{What: "repair", Value: 4000, Unit: "ms", Budget: atMost(10)},
			{What: "files", Value: 100, Unit: "fds", Note: "by netlink"},
		},
		Failures: []Failure{{"add", "no proxy"}},
	}
	for i := range report.Measures {
		report.Measures[i].judge()
	}
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

func TestMiddle(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		want   float64
	}{{[]float64{3}, 3}, {[]float64{9, 1, 4}, 4}} {
		if got := middle(tt.values); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.values, got, tt.want)
		}
	}
}
