// Command device-plugin plays the stock GPU device plugin on the kubelet's own API: it offers the given ids, marks the
// ones named in the control file Unhealthy, and registers again whenever the kubelet recreated its socket.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const poll = 200 * time.Millisecond

type plugin struct {
	api.UnimplementedDevicePluginServer
	resource, folder, control string
	ids                       []string
}

func (p *plugin) socket() string  { return filepath.Join(p.folder, "gpuward-rig.sock") }
func (p *plugin) kubelet() string { return filepath.Join(p.folder, "kubelet.sock") }

func main() {
	p := &plugin{}
	ids := flag.String("ids", "", "device ids, separated by commas")
	flag.StringVar(&p.resource, "resource", "nvidia.com/gpu", "extended resource")
	flag.StringVar(&p.folder, "folder", "/var/lib/kubelet/device-plugins", "the kubelet's plugin folder")
	flag.StringVar(&p.control, "control", "", "file with one Unhealthy id per line")
	flag.Parse()
	p.ids = strings.FieldsFunc(*ids, func(r rune) bool { return r == ',' })
	for {
		if err := p.session(); err != nil {
			log.Print(err)
		}
		time.Sleep(poll)
	}
}

// session serves and stays registered until the kubelet's socket changes: a restarted kubelet deletes our socket too.
func (p *plugin) session() error {
	born, err := identity(p.kubelet())
	if err != nil {
		return err
	}
	if err := os.Remove(p.socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", p.socket())
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, p)
	go server.Serve(listener) //nolint:errcheck // Stop below ends it
	defer server.Stop()
	if err := p.register(); err != nil {
		return err
	}
	log.Printf("registered %s with %d devices", p.resource, len(p.ids))
	for {
		time.Sleep(poll)
		now, err := identity(p.kubelet())
		if err != nil || now != born {
			return errors.New("the kubelet's socket changed; registering again")
		}
		if _, err := os.Stat(p.socket()); err != nil {
			return err
		}
	}
}

func (p *plugin) register() error {
	connection, err := grpc.NewClient("unix://"+p.kubelet(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: filepath.Base(p.socket()), ResourceName: p.resource, Options: &api.DevicePluginOptions{},
	})
	return err
}

// identity tells one incarnation of a file from the next; inode numbers alone are reused.
func identity(path string) (time.Time, error) {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

func (p *plugin) devices() []*api.Device {
	text, _ := os.ReadFile(p.control) // no file: all healthy
	unhealthy := " " + strings.Join(strings.Fields(string(text)), " ") + " "
	devices := make([]*api.Device, 0, len(p.ids))
	for _, id := range p.ids {
		health := api.Healthy
		if strings.Contains(unhealthy, " "+id+" ") {
			health = api.Unhealthy
		}
		devices = append(devices, &api.Device{ID: id, Health: health})
	}
	return devices
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	said := ""
	for stream.Context().Err() == nil {
		devices := p.devices()
		state := ""
		for _, device := range devices {
			state += device.ID + device.Health
		}
		if state != said {
			if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
				return err
			}
			said = state
		}
		time.Sleep(poll)
	}
	return nil
}

// Allocate answers as the stock plugin does by default: the chosen ids in NVIDIA_VISIBLE_DEVICES.
func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		ids := strings.Join(container.DevicesIds, ",")
		answer.ContainerResponses = append(answer.ContainerResponses,
			&api.ContainerAllocateResponse{Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": ids}})
	}
	return answer, nil
}
