// Package demo captures pods for real, on one small node made of private namespaces,
// and tells a newcomer what happens. Agent, plugin and proxy are the real binaries,
// executed as processes; libcni is the runtime; every step is checked with real
// connections, by what both ends and the kernel say.
//
// A sabotage breaks one thing just before the check that has to notice it, and mends
// it afterwards: so each group of checks is proven able to fail.
//
// # Failures it survives
//
//   - It is interrupted or killed, at any moment: processes, mounts and namespaces
//     hang on its own PID and mount namespaces, files are on a tmpfs in them.
//   - A daemon that dies or hangs: every wait has a deadline, and the last lines of
//     the daemons' logs are shown.
//   - A step that makes the next ones senseless: the story ends there, with the
//     checks that have failed.
package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// Exit codes of a run.
const (
	ExitPassed  = 0
	ExitFailed  = 1 // at least one check
	ExitUntold  = 2 // it could not be run to its end, or a sabotage was not noticed
	ExitStopped = 130
)

// A story is told once.
type story struct {
	*screen
	*node
	sabotage *Sabotage // nil unless asked for
	traffic  *traffic  // of the present step
	passed   int
	failed   []string
}

// Run tells the story on out, with the binaries in bin, and returns the exit code. It
// has to run in private namespaces: see netlab.Isolate.
func Run(ctx context.Context, out *os.File, bin string, sabotage *Sabotage) int {
	began := time.Now()
	s := &story{screen: newScreen(out), sabotage: sabotage}
	s.printf("%s\n", s.paint(bold, "Fairlead demo: a node made of private namespaces; this machine is not touched"))
	err := s.run(ctx, bin)
	switch {
	case ctx.Err() != nil:
		s.printf("\n%s\n", s.paint(yellow, "interrupted; processes, mounts and namespaces are gone with this line"))
		return ExitStopped
	case err != nil:
		s.printf("\n%s\n", s.paint(red, "the story ends here: "+err.Error()))
	}
	return s.conclude(err, time.Since(began))
}

func (s *story) run(ctx context.Context, bin string) error {
	if s.sabotage != nil {
		s.paragraph(yellow, "   sabotage  ", "             ", fmt.Sprintf("%s: %s. The check %q has to fail, and no other.", s.sabotage.Name, s.sabotage.How, s.sabotage.Check))
	}
	done := s.progress("starting the agent and the node proxy")
	var err error
	s.node, err = startNode(ctx, bin)
	done()
	if err != nil {
		return err
	}
	for _, fact := range [][2]string{
		{"agent", fmt.Sprintf("fairlead agent, pid %d here; it reads the pods' manifests from a directory", s.agent.PID())},
		{"proxy", fmt.Sprintf("nodeproxy, pid %d here: the reference node proxy, in ztunnel's place", s.proxy.PID())},
		{"runtime", "libcni, with the list bridge (host-local) → fairlead-cni"},
		{"outside", fmt.Sprintf("a web server at %s that tells its clients what it sees of them", s.outside())},
		{"quicker", "shorter waits than the defaults: proxy 1s (5s), ack 2s (5s), releaseGrace 500ms (5s), sweepInterval 500ms (10s)"},
	} {
		s.paragraph(dim, fmt.Sprintf("   %-10s", fact[0]), "             ", fact[1])
	}
	return s.tell(ctx)
}

// conclude counts, explains a failure, and returns the exit code.
func (s *story) conclude(err error, took time.Duration) int {
	if len(s.failed) > 0 || err != nil {
		s.showLogs()
	}
	colour := green
	if len(s.failed) > 0 || err != nil {
		colour = red
	}
	s.printf("\n%s\n", s.paint(colour, fmt.Sprintf("%d checks passed, %d failed", s.passed, len(s.failed)))+
		s.paint(dim, fmt.Sprintf(" (%.1f s)", took.Seconds())))
	for _, title := range s.failed {
		s.printf("failed: %s\n", title)
	}
	if s.sabotage != nil {
		if err == nil && len(s.failed) == 1 && s.failed[0] == s.sabotage.Check {
			s.printf("the sabotage %s was noticed, by the check that had to\n", s.sabotage.Name)
			return ExitFailed
		}
		s.printf("the sabotage %s was not noticed by exactly the check that had to\n", s.sabotage.Name)
		return ExitUntold
	}
	switch {
	case err != nil && !errors.Is(err, errStuck):
		return ExitUntold
	case err != nil || len(s.failed) > 0:
		return ExitFailed
	}
	return ExitPassed
}

func (s *story) showLogs() {
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		return // the pattern is a constant
	}
	for _, log := range append(logs, "/run/fairlead/cni.log") {
		s.printf("\n%s\n", s.paint(dim, "last lines of "+filepath.Base(log)))
		for _, line := range netlab.LastWords(log, 12) {
			s.printf("   %s\n", line)
		}
	}
}

// waitPatience is how long one check, or one wait, may take; on a busy machine a CNI ADD
// of 0.1 s takes seconds.
const waitPatience = 15 * time.Second

// await asks again and again until there is no error. When it has waited long enough
// it returns the last one.
func await(ctx context.Context, ask func(context.Context) error) error {
	return netlab.Await(ctx, waitPatience, 20*time.Millisecond, ask)
}

// check looks, and prints and counts what came of it. It returns false if what stands
// on it cannot be told.
func (s *story) check(ctx context.Context, title string, look look) bool {
	if s.sabotage != nil && s.sabotage.Check == title {
		return s.checkSabotaged(ctx, title, look)
	}
	return s.judge(ctx, waitPatience, title, look)
}

// checkSabotaged does the sabotage, looks, and mends.
func (s *story) checkSabotaged(ctx context.Context, title string, look look) bool {
	s.paragraph(yellow, "   ! sabotage: ", "     ", s.sabotage.How)
	mend, err := s.sabotage.commit(ctx, s)
	if err == nil {
		s.judge(ctx, patience, title, look) // it fails, there is nothing to wait for
	} else {
		s.count(ctx, "the sabotage can be done", "", err)
	}
	if mend == nil {
		return err == nil
	}
	done := s.progress("mending")
	mended := mend(ctx)
	done()
	if mended != nil {
		s.count(ctx, "the sabotage can be mended", "", mended)
	}
	return mended == nil
}

// judge looks, for as long as that may take, and counts.
func (s *story) judge(ctx context.Context, atMost time.Duration, title string, look look) bool {
	within, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	done := s.progress(title)
	seen, err := look(within)
	done()
	s.count(ctx, title, seen, err)
	return err == nil
}

// count prints and counts a check, unless somebody has interrupted it.
func (s *story) count(ctx context.Context, title, seen string, err error) {
	if ctx.Err() != nil {
		return
	}
	s.verdict(title, seen, err)
	if err == nil {
		s.passed++
	} else {
		s.failed = append(s.failed, title)
	}
}
