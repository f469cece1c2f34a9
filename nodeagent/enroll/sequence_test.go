package enroll_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// The environment of TestEveryStateFromEveryState: how many sequences, of which seed,
// and, to see one of them again, its number.
const (
	sequencesEnv = "FAIRLEAD_SEQUENCES"
	seedEnv      = "FAIRLEAD_SEED"
	sequenceEnv  = "FAIRLEAD_SEQUENCE"
	partEnv      = "FAIRLEAD_SEQUENCE_PART" // set by the test itself, for its processes
)

const (
	fewSequences = 20
	allSequences = 300 // so many have to reach every cell of the matrix
	steps        = 30
	// parts run at the same time, each in a process of its own, whose files and
	// goroutines are then its own, too. Most of the time they wait.
	parts = 8
)

// A plan is which sequences are to run.
type plan struct {
	Seed      uint64
	Sequences int
	Only      int // -1: all
	Part      int
}

// goals deals the pairs out to the sequences, at random.
func (p plan) goals(sequence int) []pair {
	pairs := possible()
	rng := rand.New(rand.NewPCG(p.Seed, 0))
	rng.Shuffle(len(pairs), func(i, j int) { pairs[i], pairs[j] = pairs[j], pairs[i] })
	var goals []pair
	for i := sequence; i < len(pairs); i += max(p.Sequences, allSequences) {
		goals = append(goals, pairs[i])
	}
	return goals
}

// Whatever happens to a node's pods, in whatever order, and wherever the agent is
// killed meanwhile: what the labels ask for and what the kernel, the proxy, the
// records and the report say agree in the end, and at the end of all nothing is left.
func TestEveryStateFromEveryState(t *testing.T) {
	netlab.Kernel(t)
	if text := os.Getenv(partEnv); text != "" {
		var p plan
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			t.Fatal(err)
		}
		p.run(t)
		return
	}
	p := plan{
		Seed: uint64(numberFrom(t, seedEnv, time.Now().UnixNano()%1e9)), Sequences: int(numberFrom(t, sequencesEnv, fewSequences)),
		Only: int(numberFrom(t, sequenceEnv, -1)),
	}
	t.Logf("%s=%d %s=%d", seedEnv, p.Seed, sequencesEnv, p.Sequences)
	m := p.runAll(t)
	var table bytes.Buffer
	if err := m.print(&table); err != nil {
		t.Error(err)
	}
	t.Logf("what happened to pods in which phase:\n%s", &table)
	missing := m.missing()
	t.Logf("%d of %d pairs have not been", len(missing), len(possible()))
	if p.Only < 0 && p.Sequences >= allSequences && len(missing) > 0 {
		t.Errorf("these have not been: %v", missing)
	}
}

func numberFrom(t *testing.T, name string, standard int64) int64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return standard
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// runAll runs the parts, and adds up their matrices.
func (p plan) runAll(t *testing.T) matrix {
	t.Helper()
	sum := matrix{}
	var mu sync.Mutex
	var running sync.WaitGroup
	for part := range parts {
		own := p
		own.Part = part
		if p.Only >= 0 && part != p.Only%parts || p.Only < 0 && part >= p.Sequences {
			continue
		}
		running.Go(func() {
			m, said, err := own.start(t)
			mu.Lock()
			defer mu.Unlock()
			for pair, n := range m {
				sum[pair] += n
			}
			if err != nil {
				t.Errorf("part %d: %v\n%s", part, err, said)
			}
		})
	}
	running.Wait()
	return sum
}

// marker is what the line begins with in which a part reports its matrix.
const marker = "matrix: "

// start runs one part in a process of its own.
func (p plan) start(t *testing.T) (matrix, string, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return nil, "", err
	}
	args := []string{"-test.run=^" + t.Name() + "$", "-test.count=1"}
	if deadline, ok := t.Deadline(); ok {
		args = append(args, "-test.timeout="+time.Until(deadline).String())
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), partEnv+"="+string(text))
	said, err := cmd.CombinedOutput()
	m := matrix{}
	var rest strings.Builder
	lines := bufio.NewScanner(bytes.NewReader(said))
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		counts, is := strings.CutPrefix(lines.Text(), marker)
		if !is {
			fmt.Fprintln(&rest, lines.Text())
			continue
		}
		var all []cell
		if err := json.Unmarshal([]byte(counts), &all); err != nil {
			return nil, "", err
		}
		for _, c := range all {
			m[c.Pair] = c.Count
		}
	}
	return m, rest.String(), err
}

// A cell is one of a matrix, on its way from a part.
type cell struct {
	Pair  pair
	Count int
}

// run runs the part's sequences, one after the other.
func (p plan) run(t *testing.T) {
	m := matrix{}
	w, err := newWorld(nodeDir(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	w.warmUp(t)
	for i := p.Part; i < p.Sequences && !t.Failed(); i += parts {
		if p.Only < 0 || i == p.Only {
			p.sequence(t, w, i, m)
		}
	}
	if err := w.close(); err != nil {
		t.Error(err)
	}
	var all []cell
	for pair, n := range m {
		all = append(all, cell{pair, n})
	}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(os.Stdout, marker+string(text))
}

// sequence runs one sequence, and looks whether the node is afterwards as it was.
func (p plan) sequence(t *testing.T, w *world, number int, m matrix) {
	w.rng = rand.New(rand.NewPCG(p.Seed, uint64(number)+1))
	w.sweep = []time.Duration{100 * time.Millisecond, 2 * time.Second}[number%2]
	title := fmt.Sprintf("sequence %d of seed %d (%s=%d %s=%d %s=%d)", number, p.Seed,
		seedEnv, p.Seed, sequencesEnv, p.Sequences, sequenceEnv, number)
	w.tell(t, title, func() {
		before := w.state()
		w.run(p.goals(number), m)
		w.untilState(before)
	})
}

// tell tells a story of a node. If the node turns out to be other than it should be,
// that fails the test.
func (w *world) tell(t *testing.T, title string, story func()) {
	t.Helper()
	w.story, w.logs, w.steps = nil, nil, 0
	defer func() {
		r := recover()
		f, is := r.(failure)
		if !is && r != nil {
			f = failure{fmt.Errorf("panic: %v\n%s", r, debug.Stack())}
		}
		if r != nil {
			t.Errorf("%s, sweep every %s:\n%s\n\n%v\n\nstate:\n%s\nthe last agents' logs:\n%s",
				title, w.sweep, strings.Join(w.story, "\n"), f.error, w.state(), w.lastLogs())
			w.abandon()
		}
	}()
	story()
}

// untilState waits until the node is in a state again in which it has been before.
func (w *world) untilState(before string) {
	w.until("the node is what it was before", func() error {
		if diff := differ(strings.Split(before, "\n"), strings.Split(w.state(), "\n")); diff != "" {
			return errors.New("it is not what it was before:\n" + diff)
		}
		return nil
	})
}

func (w *world) lastLogs() string {
	var all []string
	for _, log := range w.logs[max(0, len(w.logs)-2):] {
		lines := strings.Split(log.String(), "\n")
		all = append(all, lines[max(0, len(lines)-60):]...)
	}
	return strings.Join(all, "\n")
}

// newWorld makes a node without pods, agent or proxy.
func newWorld(dir nodeDir) (*world, error) {
	self, err := netns.Current()
	if err != nil {
		return nil, err
	}
	w := &world{dir: dir, self: self, rng: rand.New(rand.NewPCG(0, 0)), sweep: time.Second}
	w.host, err = hostLine(self)
	return w, err
}

// warmUp has an agent and a proxy run once: what a process opens only once, and what a
// node has from then on, is there after that.
func (w *world) warmUp(t *testing.T) {
	w.tell(t, "the first agent and proxy", func() {
		w.begin()
		w.end()
	})
}

func (w *world) close() error { return w.self.Close() }
