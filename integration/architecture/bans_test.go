package architecture

// A ban says what packages must not import.
//
// Patterns are import paths; ./ stands for this module, and a trailing /... for the
// package itself and all below it.
type ban struct {
	subjects []string
	except   []string // of the subjects
	targets  []string
	allow    []string // of the targets
	how      how
	tests    bool // the imports of the subjects' own test files count too
	reason   string
}

type how int

const (
	reach how = iota // over any number of packages
	touch            // themselves, or over packages of this module
	state            // themselves
)

// notStd matches every package outside the standard library.
const notStd = "(not standard)"

// kubernetes is what makes a program heavy with Kubernetes.
var kubernetes = []string{"k8s.io/...", "sigs.k8s.io/..."}

var bans = []ban{
	{
		subjects: []string{"./cni/cmd/...", "./cni/plugin/...", "./cni/agentapi/..."},
		targets:  append([]string{"github.com/prometheus/...", "net/http/...", "./nodeagent/..."}, kubernetes...),
		reason: "the plugin is executed for every pod on the node: it stays below 4 MB (net/http alone costs as much), " +
			"holds no token and knows no API; only the agent decides",
	},
	{
		subjects: []string{"./cni/install"},
		targets:  append([]string{"./nodeagent/...", "./cni/plugin/..."}, kubernetes...),
		reason: "it puts files onto a node, whoever asks for it: the agent now, a command later; what it knows of the plugin " +
			"is a binary and an entry in a list",
	},
	{
		subjects: []string{"./iptables/...", "./ztunnelproto/..."},
		targets:  kubernetes,
		reason:   "redirection and the proxy's protocol have nothing to do with Kubernetes, and serve people without it",
	},
	{
		subjects: []string{"./iptables/...", "./ztunnelproto/..."},
		targets:  []string{"log/..."},
		how:      touch,
		reason:   "a library returns errors; the agent logs each once, where it is handled",
	},
	{
		subjects: []string{"./iptables/...", "./integration/..."},
		targets:  []string{"./nodeagent/..."},
		allow:    []string{"./nodeagent/netns"},
		tests:    true,
		reason: "redirection stands below the agent; and what tests the agent from outside sees what a user sees: " +
			"the socket, the files, the kernel",
	},
	{
		subjects: []string{"./nodeagent/netns"},
		targets:  []string{notStd},
		allow:    []string{"golang.org/x/sys/...", "github.com/vishvananda/netns"},
		reason:   "everything else stands on it, the test bed too",
	},
	{
		subjects: []string{"./nodeagent/intent", "./iptables/ruleset"},
		targets: []string{
			"os/...", "syscall", "net", "net/http/...", "golang.org/x/sys/...",
			"github.com/vishvananda/...", "github.com/google/nftables/...", "github.com/mdlayher/...",
		},
		how:    touch,
		reason: "a decision and a ruleset are values: they can be printed, compared and tested anywhere",
	},
	{
		subjects: []string{"./..."},
		except:   []string{"./iptables/xtables", "./cni/install", "./integration/..."},
		targets:  []string{"os/exec"},
		how:      state,
		reason: "no shell and no helper program on the default path: distributions without either work, and there is no " +
			"lock file to wait for; xtables has no other way in, install asks other plugins for their VERSION",
	},
	{
		subjects: []string{"./..."},
		except:   []string{"./nodeagent/kube/...", "./nodeagent/cmd/...", "./integration/..."},
		targets:  []string{"k8s.io/client-go/..."},
		allow:    []string{"k8s.io/client-go/util/workqueue"}, // a queue, not a client
		how:      state,
		reason:   "the API is one source of pods among others; kube turns what it says into our own values",
	},
	{
		subjects: []string{"./cni/...", "./iptables/...", "./nodeagent/...", "./ztunnelproto/..."},
		targets: []string{
			"github.com/containernetworking/cni/libcni/...", "github.com/containernetworking/cni/pkg/invoke/...",
			"./integration/...",
		},
		reason: "libcni executes plugins, which is the runtime's work; the demo and the test bed stay out of what runs on a node",
	},
	{
		subjects: []string{"./nodeagent/sandbox", "./nodeagent/hostnet", "./nodeagent/sockets", "./nodeagent/intent"},
		targets: []string{
			"./nodeagent/cmd/...", "./nodeagent/enroll", "./nodeagent/kube/...", "./nodeagent/pluginserver",
			"./nodeagent/proxylink", "./nodeagent/status",
		},
		reason: "the arrows point one way: what observes and programs does not know who asks",
	},
	{
		subjects: []string{"./ztunnelproto/..."},
		targets:  []string{"./cni/...", "./iptables/...", "./nodeagent/..."},
		reason:   "it is for both ends: a proxy's author imports it without the agent",
	},
	{
		subjects: []string{"./nodeagent/..."},
		targets:  []string{"./cni/plugin/..."},
		reason:   "plugin and agent share agentapi, nothing else",
	},
}

// A place says where alone a package's functions may be used.
type place struct {
	pkg    string
	names  []string
	homes  []string // patterns
	tests  bool     // test files count too
	reason string
}

var (
	threads = []string{"./nodeagent/netns"}
	execs   = []string{"./iptables/xtables", "./cni/install", "./integration/..."}
)

var places = []place{
	{"runtime", []string{"LockOSThread", "UnlockOSThread"}, threads, true, oneDoor},
	{"golang.org/x/sys/unix", []string{"Setns", "Unshare", "SYS_SETNS", "SYS_UNSHARE"}, threads, true, oneDoor},
	{"syscall", []string{"Unshare", "SYS_UNSHARE"}, threads, true, oneDoor},
	{"github.com/vishvananda/netns", []string{"Set", "New", "NewNamed"}, threads, true, oneDoor},
	{"os", []string{"StartProcess"}, execs, false, "see os/exec"},
	{"syscall", []string{"Exec", "ForkExec", "StartProcess"}, execs, false, "see os/exec"},
	{"golang.org/x/sys/unix", []string{"Exec"}, execs, false, "see os/exec"},
}

const oneDoor = "one door into a namespace: a thread that comes back in the wrong one writes rules into the host's"

// later lists the packages that bans or places name and that are still to come. An
// entry goes when its package arrives.
var later = []string{
	"./iptables/xtables",
}
