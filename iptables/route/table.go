package route

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// loIndex is the index of lo in every network namespace.
const loIndex = 1

// A route is one entry of table 100.
type route struct {
	ours   bool
	metric uint32
	text   string
}

// routes lists the table of one family.
func (r *Router) routes(ctx context.Context, f family) ([]route, error) {
	request := routeHeader(f)
	request = nlconn.AppendUint32(request, unix.RTA_TABLE, ruleset.RouteTable)
	routes, err := dump(ctx, r, unix.RTM_GETROUTE, request, func(reply []byte) (route, bool, error) {
		return parseRoute(f, reply)
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list table %d: %w", ruleset.RouteTable, err)
	}
	return routes, nil
}

func routeHeader(f family) []byte {
	header := make([]byte, unix.SizeofRtMsg)
	header[0] = byte(f)
	return header
}

// parseRoute also says whether the route is in the table: kernels before 4.20 list
// all tables.
func parseRoute(f family, message []byte) (route, bool, error) {
	if len(message) < unix.SizeofRtMsg {
		return route{}, false, fmt.Errorf("a route of %d bytes", len(message))
	}
	dstLen, srcLen, tos, scope, kind := message[1], message[2], message[3], message[6], message[7]
	flags := binary.NativeEndian.Uint32(message[8:])
	table, link := uint32(message[4]), uint32(0)
	attrs, err := nlconn.ParseAttrs(message[unix.SizeofRtMsg:])
	if err != nil {
		return route{}, false, fmt.Errorf("a route: %w", err)
	}
	var to route
	dst, plain := netip.Addr{}, dstLen == 0 && srcLen == 0 && tos == 0 && kind == unix.RTN_LOCAL
	for _, a := range attrs {
		var err error
		switch a.Kind {
		case unix.RTA_TABLE:
			table, err = a.Uint32()
		case unix.RTA_OIF:
			link, err = a.Uint32()
		case unix.RTA_PRIORITY:
			to.metric, err = a.Uint32()
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(a.Value) // only printed
		case unix.RTA_CACHEINFO, unix.RTA_PREF, unix.RTA_METRICS:
		default:
			plain = false
		}
		if err != nil {
			return route{}, false, fmt.Errorf("a route: %w", err)
		}
	}
	to.ours = plain && link == loIndex && (f == unix.AF_INET6 || scope == unix.RT_SCOPE_HOST && to.metric == 0)
	destination := "default"
	if dst.IsValid() {
		destination = fmt.Sprintf("%s/%d", dst, dstLen)
	}
	to.text = fmt.Sprintf("%s, type %d, interface %d, metric %d", destination, kind, link, to.metric)
	return to, table == ruleset.RouteTable && flags&unix.RTM_F_CLONED == 0, nil
}

func (r *Router) applyRoute(ctx context.Context, f family) error {
	routes, err := r.routes(ctx, f)
	if err != nil {
		return err
	}
	if hasOurs(routes) {
		return nil
	}
	// Neither EXCL nor APPEND: where IPv4 has another entry of the same metric, ours
	// comes before it.
	err = r.changeRoute(ctx, f, unix.RTM_NEWROUTE, unix.NLM_F_CREATE, 0)
	if err == nil || errors.Is(err, unix.EEXIST) {
		return nil
	}
	if possible, why := r.routePossible(ctx, f); !possible {
		return why
	}
	return fmt.Errorf("cannot add %s: %w", routeText, err)
}

const routeText = "local default dev lo scope host table 100"

func hasOurs(routes []route) bool {
	for _, to := range routes {
		if to.ours {
			return true
		}
	}
	return false
}

func (r *Router) removeRoutes(ctx context.Context, f family) error {
	routes, err := r.routes(ctx, f)
	if err != nil {
		return err
	}
	for _, to := range routes {
		if !to.ours {
			continue
		}
		err := r.changeRoute(ctx, f, unix.RTM_DELROUTE, 0, to.metric)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("cannot delete %s: %w", routeText, err)
		}
	}
	return nil
}

func (r *Router) changeRoute(ctx context.Context, f family, kind, flags uint16, metric uint32) error {
	request := routeHeader(f)
	request[4], request[5] = ruleset.RouteTable, unix.RTPROT_BOOT
	request[6], request[7] = unix.RT_SCOPE_HOST, unix.RTN_LOCAL
	if kind == unix.RTM_DELROUTE {
		request[5] = unix.RTPROT_UNSPEC // whoever added it
	}
	request = nlconn.AppendUint32(request, unix.RTA_OIF, loIndex)
	if metric != 0 {
		request = nlconn.AppendUint32(request, unix.RTA_PRIORITY, metric)
	}
	return r.conn.Request(ctx, kind, flags|unix.NLM_F_ACK, request, nil)
}

func (r *Router) compareRoutes(ctx context.Context, f family, routes []route, wanted bool, report *Report) error {
	for _, to := range routes {
		switch {
		case to.ours && !wanted:
			report.Drift = append(report.Drift, routeText+" should not be there")
		case !to.ours && wanted:
			report.Foreign = append(report.Foreign, fmt.Sprintf("table %d: %s is not ours", ruleset.RouteTable, to.text))
		}
	}
	if wanted && !hasOurs(routes) {
		possible, why := r.routePossible(ctx, f)
		if errors.Is(why, errLoopbackDown) {
			return nil // reported already, once for both families
		}
		if !possible {
			return why
		}
		report.Drift = append(report.Drift, routeText+" is missing")
	}
	return nil
}

// routePossible says whether the family can have our route. If not, the error says
// why, and is nil if there is nothing to route either.
func (r *Router) routePossible(ctx context.Context, f family) (bool, error) {
	links, err := r.links(ctx)
	if err != nil {
		return false, err
	}
	var others []string
	loUp, loHas := false, true
	for _, link := range links {
		switch {
		case link.index == loIndex:
			loUp, loHas = link.up, link.ipv6
		case link.ipv6:
			others = append(others, link.name)
		}
	}
	switch {
	case f == unix.AF_INET6 && !loHas && len(others) == 0:
		return false, nil
	case f == unix.AF_INET6 && !loHas:
		return false, fmt.Errorf("IPv6 is on for %q and off for lo, so that nothing can be led to the proxy: "+
			"set net.ipv6.conf.lo.disable_ipv6=0 in the pod, or disable_ipv6=1 for all its interfaces", others)
	case !loUp:
		return false, errLoopbackDown
	}
	return true, nil
}

// LoopbackDown is the first that is said of a namespace whose lo is down. The kernel takes
// the routes over it away, too.
const LoopbackDown = "lo is down"

var errLoopbackDown = errors.New(LoopbackDown)
