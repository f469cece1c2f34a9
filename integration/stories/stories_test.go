package stories

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

func TestMain(m *testing.M) { netlab.Main(m, 23) }

// binaries builds what the stories run, once, and returns the directory.
var binaries = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "bin")
	if err != nil {
		return "", err
	}
	return dir, netlab.Build("../..", dir, "./nodeagent/cmd/fairlead", "./cni/cmd/fairlead-cni", "./integration/cmd/nodeproxy")
})

func TestStories(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata", Setup: setup, Cmds: scripted(), RequireUniqueNames: true})
}

type nodeKey struct{}

// setup gives a story a node, which is not furnished yet, and ends it with the story.
func setup(env *testscript.Env) error {
	t := env.T().(testing.TB)
	netlab.Kernel(t)
	bin, err := binaries()
	if err != nil {
		return err
	}
	n := newNode(t.Context(), strings.TrimPrefix(filepath.Base(env.WorkDir), "script-"), bin, env.WorkDir)
	env.Values[nodeKey{}] = n
	env.Defer(func() {
		if err := n.close(); err != nil {
			t.Errorf("the story leaves something behind: %v", err)
		}
		if t.Failed() {
			for _, log := range []string{"agent.log", "nodeproxy.log", "run/cni.log"} {
				t.Logf("%s:\n%s", log, strings.Join(netlab.LastWords(n.file(log), 200), "\n"))
			}
		}
	})
	return nil
}

// errUsage is returned by a command that does not understand its arguments.
var errUsage = errors.New("wrong arguments: see the package's documentation")

// A command does what a line of a story says, and returns what it prints.
type command struct {
	least, most int // arguments
	run         func(n *node, args []string) (string, error)
}

const many = 1 << 10

// silent makes a command of what prints nothing.
func silent(least, most int, run func(n *node, args []string) error) command {
	return command{least, most, func(n *node, args []string) (string, error) { return "", run(n, args) }}
}

// printing makes a command of what prints something about one sandbox.
func printing(run func(n *node, name string) (string, error)) command {
	return command{1, 1, func(n *node, args []string) (string, error) { return run(n, args[0]) }}
}

// commands are described in the package's documentation.
func commands() map[string]command {
	all := map[string]command{
		"node":     silent(0, many, (*node).furnish),
		"agent":    silent(1, 1, func(n *node, args []string) error { return n.agent.do(n.ctx, args[0], nil) }),
		"proxy":    silent(1, many, func(n *node, args []string) error { return n.proxy.do(n.ctx, args[0], args[1:]) }),
		"pod":      silent(1, many, func(n *node, args []string) error { return n.define(args[0], args[1:]) }),
		"label":    silent(2, 2, func(n *node, args []string) error { return n.label(args[0], args[1]) }),
		"unlabel":  silent(2, 2, func(n *node, args []string) error { return n.unlabel(args[0], args[1]) }),
		"annotate": silent(2, 2, func(n *node, args []string) error { return n.annotate(args[0], args[1]) }),
		"chain":    silent(1, 1, func(n *node, args []string) error { return n.chain(args[0]) }),
		"add":      silent(1, 3, (*node).add),
		"finish":   silent(1, 1, func(n *node, args []string) error { return n.finish(args[0]) }),
		"del":      silent(1, 1, func(n *node, args []string) error { return n.del(args[0]) }),
		"connect":  {1, 2, func(n *node, args []string) (string, error) { return n.connect(args[0], args[1:]...) }},
		"send":     silent(2, 2, func(n *node, args []string) error { return n.send(args[0], args[1]) }),
		"hangup":   silent(2, 2, func(n *node, args []string) error { return n.hangup(args[0], args[1]) }),
		"resolve":  printing((*node).resolve),
		"rules":    printing((*node).rules),
		"status":   {0, many, (*node).status},
		"drain": {0, many, func(n *node, args []string) (string, error) {
			return n.leave("drain", "--run-dir", n.file("run"), args)
		}},
		"uninstall": {0, many, func(n *node, args []string) (string, error) {
			return n.leave("uninstall", "--config", n.file("agent.yaml"), args)
		}},
		"host":    {0, 0, func(n *node, _ []string) (string, error) { return n.host() }},
		"records": {0, 0, func(n *node, _ []string) (string, error) { return n.records() }},
	}
	all["eventually"] = command{2, many, func(n *node, args []string) (string, error) {
		cmd, ok := all[args[1]]
		if !ok {
			return "", fmt.Errorf("there is no command %s to repeat", args[1])
		}
		return n.eventually(args[0], func() (string, error) { return cmd.call(n, args[2:]) })
	}}
	return all
}

func (c command) call(n *node, args []string) (string, error) {
	if len(args) < c.least || len(args) > c.most {
		return "", errUsage
	}
	return c.run(n, args)
}

// eventually repeats a command until it succeeds and what it prints matches.
func (n *node) eventually(pattern string, run func() (string, error)) (string, error) {
	re, err := regexp.Compile("(?m)" + pattern)
	if err != nil {
		return "", err
	}
	var out string
	err = n.await(func() (err error) {
		if out, err = run(); err == nil && !re.MatchString(out) {
			err = fmt.Errorf("no match for %q", pattern)
		}
		return err
	})
	return out, err
}

// scripted are the commands as testscript knows them.
func scripted() map[string]func(*testscript.TestScript, bool, []string) {
	all := map[string]func(*testscript.TestScript, bool, []string){}
	for name, cmd := range commands() {
		all[name] = func(ts *testscript.TestScript, neg bool, args []string) {
			n := ts.Value(nodeKey{}).(*node)
			if n.net == nil && name != "node" {
				ts.Fatalf("a story begins with node")
			}
			out, err := cmd.call(n, args)
			fmt.Fprint(ts.Stdout(), out)
			if err != nil {
				fmt.Fprintln(ts.Stderr(), err)
			}
			switch {
			case errors.Is(err, errUsage):
				ts.Fatalf("%s: %v", name, err)
			case neg && err == nil:
				ts.Fatalf("%s succeeds, and should not", name)
			case !neg && err != nil:
				ts.Fatalf("%s fails", name)
			}
		}
	}
	return all
}
